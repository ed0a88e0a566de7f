package client

import (
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the work of clients: moraine_client_* of docs/METRICS.md. Several clients of one
// process may share it. Client.Stats has some of the counts.
type Metrics struct{ counts *metrics.Metrics }

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics { return &Metrics{metrics.NewMetrics(reg)} }

// Stats is what a client has done so far, for programs that display it.
type Stats struct {
	WrittenBytes   uint64
	ReadBytes      uint64
	ChunksReplaced uint64
	// StripesResubmitted counts the stripes that the client wrote again because the service
	// refused their commit after devices went out.
	StripesResubmitted uint64
	StripesRebuilt     uint64
	// PartsRebuilt counts the parts of chunks that reads rebuilt. PartsVerified counts those
	// whose whole chunk was compared with its recorded checksum.
	PartsRebuilt, PartsVerified uint64
	ChunksHedged                uint64
	HedgesWon                   uint64
	ChunksReported              uint64
	MetaRequests                uint64
	MetaRetries                 uint64
	Sessions                    uint64
	// StripesCutShort counts the stripes that were sent before they were full, because memory was
	// short.
	StripesCutShort uint64
	// CacheHits counts answers from the cache, under a lease. CacheMisses counts requests that
	// were needed although leases were held.
	CacheHits, CacheMisses uint64
	// Loans counts the names and attributes lent to kernels. LoanWaits counts the recalls, and
	// the changes by this client, that waited until a loan was over.
	Loans, LoanWaits uint64
	// DelegatedChanges counts the changes that the client made by itself in delegated directories.
	// DelegatedLost counts those that the service did not carry out.
	DelegatedChanges, DelegatedLost uint64
}

// Stats returns the counts of the client's Metrics.
func (c *Client) Stats() Stats {
	m := c.metrics
	return Stats{
		WrittenBytes:       metrics.Count(m.WrittenBytes),
		ReadBytes:          metrics.Count(m.ReadBytes),
		ChunksReplaced:     metrics.Count(m.ChunksReplaced),
		StripesResubmitted: metrics.Count(m.StripesResubmitted),
		StripesRebuilt:     metrics.Count(m.StripesRebuilt),
		PartsRebuilt:       metrics.Count(m.PartsRebuilt), PartsVerified: metrics.Count(m.PartsVerified),
		ChunksHedged:   metrics.Count(m.ChunksHedged),
		HedgesWon:      metrics.Count(m.HedgesWon),
		ChunksReported: metrics.Count(m.ChunksReported),
		MetaRequests:   metrics.Count(m.MetaRequests),
		MetaRetries:    metrics.Count(m.MetaRetries),
		Sessions:       metrics.Count(m.Sessions),

		StripesCutShort: metrics.Count(m.StripesCutShort),
		CacheHits:       metrics.Count(m.CacheHits), CacheMisses: metrics.Count(m.CacheMisses),
		Loans: metrics.Count(m.Loans), LoanWaits: metrics.Count(m.LoanWaits),
		DelegatedChanges: metrics.Count(m.DelegatedOps), DelegatedLost: metrics.Count(m.DelegatedLost),
	}
}

// CacheItems is how many names, attributes and leases the client caches now,
// Config.CacheEntries at most; 0 without a cache. It sends no request, does not fail, and may
// be called concurrently.
func (c *Client) CacheItems() int {
	return c.meta.CacheItems()
}
