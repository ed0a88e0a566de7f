// Package metrics counts the work of clients. Each package of the client counts
// in the one Metrics of its Client. NewMetrics registers the metrics once, the
// packages add to them, and Count reads one back for client.Stats.
package metrics

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
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
	Sessions           prometheus.Counter     // opened
	BudgetWaits        prometheus.Counter     // writes that waited for the memory budget
	StripesCutShort    prometheus.Counter     // sent before they were full, to give memory to others
	ReadaheadHits      prometheus.Counter     // reads served from what was fetched ahead
	BandwidthSeconds   *prometheus.CounterVec // waits for the bound of the bandwidth, by direction
	PiecesGot          prometheus.Counter     // reads of evicted ranges
	PieceErrors        prometheus.Counter     // those that a server failed
	CacheHits          prometheus.Counter     // look-ups, attributes and listings answered without a request
	CacheMisses        prometheus.Counter     // those that needed a request while leases were held
	CacheRecalls       prometheus.Counter
	ListedAhead        prometheus.Counter // entries of directories whose names were looked up one by one, or that a walk comes to next
	Loans              prometheus.Counter // names and attributes lent to kernels
	LoanWaits          prometheus.Counter // recalls and own changes that waited for the end of a loan
	LeaseRequests      prometheus.Counter // requests that renew the leases or poll for recalls
	Delegations        prometheus.Counter // directories that the service delegated, but for those made in delegated ones
	DelegationRecalls  prometheus.Counter
	DelegatedOps       prometheus.Counter // changes made in delegated directories
	DelegationBatches  prometheus.Counter // requests that sent them
	DelegatedLost      prometheus.Counter // changes that the service did not carry out

	// Of the node's cache.
	NodeCacheHitBytes     prometheus.Counter
	NodeCacheMissBytes    prometheus.Counter // of reads that it did not have whole
	NodeCacheAddedBytes   prometheus.Counter
	NodeCacheDroppedBytes prometheus.Counter // not added, since the disk does not keep up
	NodeCacheEvictions    prometheus.Counter // of cache files
	NodeCacheErrors       *prometheus.CounterVec
	NodeCacheBytes        prometheus.Gauge

	// WaitsExceeded counts the calls that failed because a bounded resource of the client was not
	// free in time.
	WaitsExceeded *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "client")
	return &Metrics{
		WrittenBytes:       f.Counter("written_bytes_total", "File bytes put on chunkservers."),
		ReadBytes:          f.Counter("read_bytes_total", "File bytes read from chunkservers."),
		ChunksPut:          f.Counter("chunks_put_total", "Chunks put."),
		ChunksGot:          f.Counter("chunks_got_total", "Chunks, or ranges of them, read."),
		ChunkErrors:        f.Counters("chunk_errors_total", "Failed requests to chunkservers.", "op", "kind"),
		ChunksReplaced:     f.Counter("chunks_replaced_total", "Chunks put on another device than was placed."),
		StripesResubmitted: f.Counter("stripes_resubmitted_total", "Stripes that the client resubmitted, because devices that received them went out, or lost their memory, before the commit."),
		StripesRebuilt:     f.Counter("stripes_rebuilt_total", "Reads of stripes served with the help of other chunks."),
		PartsRebuilt:       f.Counter("rebuilt_parts_total", "Parts of chunks that reads rebuilt from other chunks."),
		PartsVerified:      f.Counter("rebuilt_parts_verified_total", "Rebuilt parts whose whole chunk was rebuilt and compared with its recorded checksum."),
		ChunksHedged:       f.Counter("chunks_hedged_total", "Late chunks for which the client read other chunks."),
		ParityWrong:        f.Counter("parity_wrong_total", "Parity chunks that have their recorded checksum, but do not match the data; they are reported, and encoded again."),
		HedgesWon:          f.Counter("hedges_won_total", "Hedged reads that the other chunks answered first."),
		ChunksReported:     f.Counter("chunks_reported_total", "Bad chunks reported to the metadata service."),
		MetaRequests:       f.Counter("meta_requests_total", "Requests to the metadata service."),
		LeadersLeft:        f.Counter("meta_leaders_left_total", "Attempts of requests that the client ended because another metadata server leads now."),
		MetaRetries:        f.Counter("meta_retries_total", "Repeated attempts of requests to the metadata service."),
		MetaSeconds:        f.Histogram("meta_seconds", "Time of requests to the metadata service, retries included.", 0.0001, 2.5, 14),
		PutSeconds:         f.Histogram("put_seconds", "Time to put a chunk.", 0.0001, 2.5, 14),
		GetSeconds:         f.Histogram("get_seconds", "Time to read a chunk or a range of it.", 0.0001, 2.5, 14),
		CommitSeconds:      f.Histogram("commit_seconds", "Time from the call of Commit to its end.", 0.0001, 2.5, 14),
		Sessions:           f.Counter("sessions_total", "Sessions opened."),
		BudgetWaits:        f.Counter("budget_waits_total", "Writes that waited for the memory budget."),
		StripesCutShort:    f.Counter("stripes_cut_short_total", "Stripes sent before they were full, for want of memory."),
		ReadaheadHits:      f.Counter("readahead_hits_total", "Reads served from what was fetched ahead."),
		BandwidthSeconds:   f.Counters("bandwidth_wait_seconds_total", "Time that reads and writes of stripes waited for the limit of the client's bandwidth, in all.", "direction"),
		PiecesGot:          f.Counter("pieces_got_total", "Reads of evicted ranges, from pieces of objects."),
		PieceErrors:        f.Counter("piece_errors_total", "Reads of pieces that a server did not answer, or answered with wrong bytes."),
		CacheHits:          f.Counter("cache_hits_total", "Names, attributes and listings answered from the cache, under a lease."),
		CacheMisses:        f.Counter("cache_misses_total", "Names, attributes and listings that the cache did not have."),
		CacheRecalls:       f.Counter("cache_recalls_total", "Recalls carried out."),
		ListedAhead:        f.Counter("cache_listed_ahead_total", "Entries that the client listed ahead: of directories in which programs look up many names, and of trees that programs walk."),
		Loans:              f.Counter("loans_total", "Names and attributes lent to the kernel."),
		LoanWaits:          f.Counter("loan_waits_total", "Recalls, and changes by the client itself, that waited until a loan was over."),
		LeaseRequests:      f.Counter("lease_requests_total", "Requests that renew leases and poll for recalls; the meta requests do not include them."),

		Delegations:       f.Counter("delegations_total", "Directories that the service delegated to the client, without those that the client made in delegated ones."),
		DelegationRecalls: f.Counter("delegation_recalls_total", "Delegated directories that the service recalled."),
		DelegatedOps:      f.Counter("delegated_changes_total", "Changes that the client made by itself in delegated directories."),
		DelegationBatches: f.Counter("delegation_batches_total", "Requests that sent such changes."),
		DelegatedLost:     f.Counter("delegated_changes_lost_total", "Such changes that the service did not carry out: they are lost, and logged."),

		NodeCacheHitBytes:     f.Counter("node_cache_hit_bytes_total", "File bytes read from the node's cache."),
		NodeCacheMissBytes:    f.Counter("node_cache_miss_bytes_total", "File bytes of reads that the node's cache could not answer whole."),
		NodeCacheAddedBytes:   f.Counter("node_cache_added_bytes_total", "File bytes added to the node's cache."),
		NodeCacheDroppedBytes: f.Counter("node_cache_dropped_bytes_total", "File bytes not added to the node's cache, because its disk did not keep up or had no room."),
		NodeCacheEvictions:    f.Counter("node_cache_evictions_total", "Files that this process evicted from the node's cache."),
		NodeCacheErrors:       f.Counters("node_cache_errors_total", "Errors of the node's cache, by what failed: read, write, lock, scan, remove, or damaged bytes.", "op"),
		NodeCacheBytes:        f.Gauge("node_cache_bytes", "Space that the node's cache takes on its disk, when it was last counted."),

		WaitsExceeded: limit.NewMetrics(reg, "client"),
	}
}

// Count returns the value of a counter; 0 on error.
func Count(c prometheus.Counter) uint64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
