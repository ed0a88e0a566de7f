package client

import (
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Metrics counts what clients do. Several clients of one process may share it.
type Metrics = metrics.Metrics

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics { return metrics.NewMetrics(reg) }

// Stats is what a client has done so far, for programs that show it.
type Stats struct {
	WrittenBytes   uint64
	ReadBytes      uint64
	ChunksReplaced uint64
	// StripesResubmitted counts the stripes whose commit was refused since devices went out.
	StripesResubmitted uint64
	StripesRebuilt     uint64
	// PartsRebuilt counts the parts of chunks that reads rebuilt, and PartsVerified those whose
	// whole chunk was compared with its recorded sum.
	PartsRebuilt, PartsVerified uint64
	ChunksHedged                uint64
	HedgesWon                   uint64
	ChunksReported              uint64
	MetaRequests                uint64
	MetaRetries                 uint64
	Sessions                    uint64
	// StripesCutShort counts the stripes that were sent before they were full,
	// for want of memory.
	StripesCutShort uint64
	// CacheHits counts what was answered without a request, under a lease, and
	// CacheMisses what was not though leases were held.
	CacheHits, CacheMisses uint64
	// LocalCreates counts the files made under exclusive leases, and LocalCreatesLost
	// those of them that the service did not take.
	LocalCreates, LocalCreatesLost uint64
}

// Stats returns the counts of the client's Metrics.
func (c *Client) Stats() Stats {
	m := c.metrics
	return Stats{
		WrittenBytes:       count(m.WrittenBytes),
		ReadBytes:          count(m.ReadBytes),
		ChunksReplaced:     count(m.ChunksReplaced),
		StripesResubmitted: count(m.StripesResubmitted),
		StripesRebuilt:     count(m.StripesRebuilt),
		PartsRebuilt:       count(m.PartsRebuilt), PartsVerified: count(m.PartsVerified),
		ChunksHedged:   count(m.ChunksHedged),
		HedgesWon:      count(m.HedgesWon),
		ChunksReported: count(m.ChunksReported),
		MetaRequests:   count(m.MetaRequests),
		MetaRetries:    count(m.MetaRetries),
		Sessions:       count(m.Sessions),

		StripesCutShort: count(m.StripesCutShort),
		CacheHits:       count(m.CacheHits), CacheMisses: count(m.CacheMisses),
		LocalCreates: count(m.LocalCreates), LocalCreatesLost: count(m.LocalCreatesLost),
	}
}

// CacheItems is how many names, attributes and leases the client keeps now,
// Config.CacheEntries at the most; 0 without a cache. It asks nobody, does not fail,
// and may be called concurrently.
func (c *Client) CacheItems() int {
	if c.cache == nil {
		return 0
	}
	c.cache.mu.Lock()
	defer c.cache.mu.Unlock()
	return c.cache.items
}

func count(c prometheus.Counter) uint64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
