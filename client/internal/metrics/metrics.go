// Package metrics counts the work of clients. Each package of the client counts in the one
// Metrics of its Client: NewMetrics registers the metrics once, the packages add to them, and
// Count reads one back for client.Stats.
package metrics

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Metrics counts the work of clients. Several clients of one process may share it.
type Metrics struct {
	WrittenBytes       prometheus.Counter // file bytes put
	ReadBytes          prometheus.Counter // file bytes read
	ChunksPut          prometheus.Counter
	ChunksGot          prometheus.Counter
	ChunkErrors        *prometheus.CounterVec // by op and kind
	ChunksReplaced     prometheus.Counter     // put on another device than the placement's
	StripesResubmitted prometheus.Counter     // because the service refused their commit
	StripesRebuilt     prometheus.Counter     // reads that needed parity
	PartsRebuilt       prometheus.Counter     // parts of chunks that reads rebuilt
	PartsVerified      prometheus.Counter     // those compared with the recorded checksum
	ChunksHedged       prometheus.Counter     // late chunks for which the client requested others
	HedgesWon          prometheus.Counter     // those for which the others arrived first
	ParityWrong        prometheus.Counter     // parity chunks that do not match their data
	ChunksReported     prometheus.Counter     // bad chunks reported to the service
	MetaRequests       prometheus.Counter
	MetaRetries        prometheus.Counter
	LeadersLeft        prometheus.Counter // attempts that ended because another server leads
	MetaSeconds        prometheus.Histogram
	PutSeconds         prometheus.Histogram
	GetSeconds         prometheus.Histogram
	CommitSeconds      prometheus.Histogram
	Sessions           prometheus.Counter // opened
	BudgetWaits        prometheus.Counter // writes that waited for the memory budget
	StripesCutShort    prometheus.Counter // sent before they were full, to give memory to others
	ReadaheadHits      prometheus.Counter // reads served from what was fetched ahead
	PiecesGot          prometheus.Counter // reads of evicted ranges
	PieceErrors        prometheus.Counter // those that a server failed
	CacheHits          prometheus.Counter // look-ups, attributes and listings answered without a request
	CacheMisses        prometheus.Counter // those that needed a request while leases were held
	CacheRecalls       prometheus.Counter
	LocalCreates       prometheus.Counter // files made under exclusive leases
	LocalCreatesLost   prometheus.Counter // those that the service refused
	HoldRecalls        prometheus.Counter // exclusive leases that the service recalled
	LeaseRequests      prometheus.Counter // requests that renew the leases or poll for recalls
	// WaitsExceeded counts the calls that failed because a bounded resource of the client was not
	// free in time.
	WaitsExceeded *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_client_" + name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "moraine_client_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14)})
	}
	m := &Metrics{
		WrittenBytes: counter("written_bytes_total", "File bytes put on chunkservers."),
		ReadBytes:    counter("read_bytes_total", "File bytes read from chunkservers."),
		ChunksPut:    counter("chunks_put_total", "Chunks put."),
		ChunksGot:    counter("chunks_got_total", "Chunks, or ranges of them, read."),
		ChunkErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_client_chunk_errors_total",
			Help: "Failed requests to chunkservers."}, []string{"op", "kind"}),
		ChunksReplaced:     counter("chunks_replaced_total", "Chunks put on another device than was placed."),
		StripesResubmitted: counter("stripes_put_anew_total", "Stripes put once more, since devices that took them went out, or lost their memory, before they were committed."),
		StripesRebuilt:     counter("stripes_rebuilt_total", "Reads of stripes served with the help of other chunks."),
		PartsRebuilt:       counter("rebuilt_parts_total", "Parts of chunks that reads rebuilt from other chunks."),
		PartsVerified:      counter("rebuilt_parts_verified_total", "Those of them whose whole chunk was rebuilt and compared with its recorded sum."),
		ChunksHedged:       counter("chunks_hedged_total", "Late chunks for which others were asked."),
		ParityWrong:        counter("parity_wrong_total", "Parity chunks that have their recorded sum, and are not the parity of their stripe's data; reported, and encoded again."),
		HedgesWon:          counter("hedges_won_total", "Hedged reads that the other chunks answered first."),
		ChunksReported:     counter("chunks_reported_total", "Bad chunks reported to the metadata service."),
		MetaRequests:       counter("meta_requests_total", "Requests to the metadata service."),
		LeadersLeft:        counter("meta_leaders_left_total", "Attempts of requests that were ended since another metadata server than the one that did not answer leads."),
		MetaRetries:        counter("meta_retries_total", "Repeated attempts of requests to the metadata service."),
		MetaSeconds:        seconds("meta_seconds", "Time of requests to the metadata service, retries included."),
		PutSeconds:         seconds("put_seconds", "Time to put a chunk."),
		GetSeconds:         seconds("get_seconds", "Time to read a chunk or a range of it."),
		CommitSeconds:      seconds("commit_seconds", "Time from the call of Commit to its end."),
		Sessions:           counter("sessions_total", "Sessions opened."),
		BudgetWaits:        counter("budget_waits_total", "Writes that waited for the memory budget."),
		StripesCutShort:    counter("stripes_cut_short_total", "Stripes sent before they were full, for want of memory."),
		ReadaheadHits:      counter("readahead_hits_total", "Reads served from what was fetched ahead."),
		PiecesGot:          counter("pieces_got_total", "Reads of evicted ranges, from pieces of objects."),
		PieceErrors:        counter("piece_errors_total", "Reads of pieces that a server did not answer, or answered wrongly."),
		CacheHits:          counter("cache_hits_total", "Names, attributes and listings answered from the cache, under a lease."),
		CacheMisses:        counter("cache_misses_total", "Names, attributes and listings that the cache did not have."),
		CacheRecalls:       counter("cache_recalls_total", "Recalls carried out."),
		LocalCreates:       counter("local_creates_total", "Files made under exclusive leases, before the service heard of them."),
		LocalCreatesLost:   counter("local_creates_lost_total", "Files made under exclusive leases that the service did not take, or that went with the session."),
		HoldRecalls:        counter("exclusive_lease_recalls_total", "Exclusive leases that the service wanted back."),
		LeaseRequests:      counter("lease_requests_total", "Requests that keep the leases and ask for recalls; not among the meta requests."),
		WaitsExceeded:      limit.NewMetrics(reg, "client"),
	}
	if reg != nil {
		reg.MustRegister(m.WrittenBytes, m.ReadBytes, m.ChunksPut, m.ChunksGot, m.ChunkErrors, m.ChunksReplaced,
			m.StripesResubmitted, m.StripesRebuilt, m.PartsRebuilt, m.PartsVerified, m.ChunksHedged, m.HedgesWon, m.ParityWrong, m.ChunksReported, m.MetaRequests, m.MetaRetries, m.LeadersLeft,
			m.MetaSeconds, m.PutSeconds, m.GetSeconds, m.CommitSeconds, m.Sessions, m.BudgetWaits,
			m.StripesCutShort, m.ReadaheadHits, m.PiecesGot, m.PieceErrors,
			m.CacheHits, m.CacheMisses, m.CacheRecalls, m.LeaseRequests, m.LocalCreates, m.LocalCreatesLost, m.HoldRecalls)
	}
	return m
}

// Count returns the value of a counter; 0 on error.
func Count(c prometheus.Counter) uint64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
