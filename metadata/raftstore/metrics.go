package raftstore

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the collectors of one Store.
type Metrics struct {
	WaitsExceeded   *prometheus.CounterVec // proposals refused because too many were in flight, by resource
	Leader          prometheus.Gauge       // 1 while this node leads and serves
	LeaderChanges   prometheus.Counter     // times that this node began to lead
	LeaderSilent    prometheus.Counter     // times that the leader was silent for too long
	Applied         prometheus.Gauge       // index of the last entry applied
	Entries         prometheus.Counter     // entries applied
	ApplyBatch      prometheus.Histogram   // entries in one commit of the state
	ApplySeconds    prometheus.Histogram   // applying and committing one batch
	AppendSeconds   prometheus.Histogram   // one durable append to the log
	ProposeSeconds  prometheus.Histogram   // proposal to result
	ReadRounds      prometheus.Counter     // confirmations of leadership for reads
	ReadsShared     prometheus.Histogram   // reads that one round served
	BarrierSeconds  prometheus.Histogram   // one read's wait for its round
	Snapshots       *prometheus.CounterVec
	SnapshotSeconds prometheus.Histogram
	ReceivedBytes   prometheus.Counter // of snapshots that other nodes sent
	LowSpace        prometheus.Gauge   // 1 while the disk is nearly full
	LogStalled      prometheus.Gauge   // 1 while a node without other voters waits for an append
	Fenced          prometheus.Counter // connections with nodes of another incarnation or cluster that were refused
}

// NewMetrics makes the collectors and registers them with reg, if it is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "raft")
	seconds := prometheus.ExponentialBuckets(50e-6, 2, 18) // 50 us to 6.5 s
	// With an edge at 100 ms too, which nothing that is applied may take longer than.
	i, _ := slices.BinarySearch(seconds, 0.1)
	applied := slices.Insert(slices.Clone(seconds), i, 0.1)
	counts := prometheus.ExponentialBuckets(1, 2, 11)
	return &Metrics{
		WaitsExceeded:   limit.NewMetrics(reg, "raft"),
		Leader:          f.Gauge("leader", "1 while this node leads and serves."),
		LeaderChanges:   f.Counter("leader_changes_total", "Times that this node began to lead."),
		LeaderSilent:    f.Counter("leader_silent_total", "Times that this node, as a follower, started an election because its leader was silent for too long."),
		Applied:         f.Gauge("applied_index", "Index of the last log entry applied."),
		Entries:         f.Counter("entries_applied_total", "Log entries applied."),
		ApplyBatch:      f.HistogramOf("apply_batch_entries", "Log entries in one commit of the state.", counts),
		ApplySeconds:    f.HistogramOf("apply_seconds", "Time to apply and commit one batch of entries.", applied),
		AppendSeconds:   f.HistogramOf("log_append_seconds", "Time of one durable append to the log.", seconds),
		ProposeSeconds:  f.HistogramOf("propose_seconds", "Time from a proposal to its result.", seconds),
		ReadRounds:      f.Counter("read_rounds_total", "Confirmations of leadership made for reads."),
		ReadsShared:     f.HistogramOf("read_round_reads", "Reads that one confirmation served.", counts),
		BarrierSeconds:  f.HistogramOf("read_barrier_seconds", "Time that a read waited for its confirmation.", seconds),
		SnapshotSeconds: f.Histogram("snapshot_seconds", "Time to take, to receive or to restore a snapshot.", 1e-3, 2, 22),
		ReceivedBytes:   f.Counter("snapshot_received_bytes_total", "Bytes of snapshots that other nodes sent."),
		LowSpace:        f.Gauge("low_space", "1 while the metadata disk is nearly full."),
		LogStalled:      f.Gauge("log_stalled", "1 while an append to the log hangs and no other server can lead."),
		Fenced:          f.Counter("fenced_total", "Connections with metadata servers of another incarnation, or cluster, that were refused."),
		Snapshots:       f.Counters("snapshots_total", "Snapshots, by what was done with them.", "action"),
	}
}
