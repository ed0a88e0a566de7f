package agent

import (
	"github.com/morainefs/moraine/internal/metric"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the work of an agent.
type Metrics struct {
	Sealed        prometheus.Counter
	Committed     prometheus.Counter
	Failed        *prometheus.CounterVec // by kind
	Retries       prometheus.Counter
	Recovered     prometheus.Counter
	Memory        prometheus.Gauge       // bytes of slots
	RestoredBytes *prometheus.CounterVec // by source: cluster, or node
	BadRanges     *prometheus.CounterVec // by level
	BrokenConns   prometheus.Counter     // that ended by an error
	// FlushedBytes are those of parts that were given to the cluster; PacedSeconds is how long writes
	// waited for Config.FlushRate.
	FlushedBytes, PacedSeconds prometheus.Counter
	// SharedBytes are those of parts that other ranks store. ClaimsFailed counts the parts that could
	// not ask for ranks of other nodes.
	SharedBytes, ClaimsFailed prometheus.Counter
	// Of the parts of each run: at most maxRunStats runs have labels of their own. RunLast is when the
	// last part was sealed, for level local, and when its step reached the others.
	RunSaves, RunBytes, RunStall, RunFailed *prometheus.CounterVec // by run
	RunLast                                 *prometheus.GaugeVec   // by run and level
	RunRestores, RunRestoreSeconds          *prometheus.CounterVec // by run
	// What a crash of the node now would lose if only a level and safer ones survived it.
	RunLostSteps, RunLostSeconds *prometheus.GaugeVec // by run and level
}

// hideRun removes the metrics of a run.
func (m *Metrics) hideRun(run string) {
	of := prometheus.Labels{"run": run}
	for _, c := range []*prometheus.CounterVec{m.RunSaves, m.RunBytes, m.RunStall, m.RunFailed, m.RunRestores, m.RunRestoreSeconds} {
		c.DeletePartialMatch(of)
	}
	for _, g := range []*prometheus.GaugeVec{m.RunLast, m.RunLostSteps, m.RunLostSeconds} {
		g.DeletePartialMatch(of)
	}
}

// NewMetrics makes the metrics and registers them with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "agent")
	return &Metrics{
		Sealed:            f.Counter("sealed_parts_total", "Parts that trainers sealed: they are at level local."),
		Committed:         f.Counter("committed_parts_total", "Parts whose step is committed."),
		Failed:            f.Counters("failed_parts_total", "Parts whose step will never be committed, by kind of error.", "kind"),
		Retries:           f.Counter("part_retries_total", "Times that a sealed part was written to the cluster again."),
		Recovered:         f.Counter("recovered_parts_total", "Sealed parts that an agent found from the one before it."),
		RestoredBytes:     f.Counters("restored_bytes_total", "Bytes that trainers fetched, by source: the cluster, or the memory of the node.", "source"),
		BadRanges:         f.Counters("bad_ranges_total", "Ranges that fetches found corrupt or lost at a level, by level.", "level"),
		BrokenConns:       f.Counter("broken_connections_total", "Connections of trainers that ended by an error."),
		FlushedBytes:      f.Counter("flushed_bytes_total", "Bytes of parts that the agent has given to the cluster, again for each retry."),
		SharedBytes:       f.Counter("shared_bytes_total", "Bytes of parts that the agent has not given to the cluster: another rank of the step stores the same."),
		ClaimsFailed:      f.Counter("claims_failed_total", "Parts that found out nothing about ranks of other nodes: they store what both have in common again."),
		PacedSeconds:      f.Counter("flush_paced_seconds_total", "Time that writes of parts waited for --flush-rate. What they wait while trainers copy is not in it."),
		RunSaves:          f.Counters("run_saves_total", "Parts that trainers sealed, by run.", "run"),
		RunBytes:          f.Counters("run_saved_bytes_total", "Bytes of tensors and blobs of those parts, by run.", "run"),
		RunStall:          f.Counters("run_stall_seconds_total", "Time from the begin of those parts to their seal, by run.", "run"),
		RunFailed:         f.Counters("run_failed_parts_total", "Parts whose step will never be committed, by run.", "run"),
		RunLast:           f.Gauges("run_last_commit_timestamp_seconds", "When the last save of the run reached a level, in seconds since the epoch, as far as the agent followed it, by run and level.", "run", "level"),
		Memory:            f.Gauge("slot_bytes", "Memory of slots, free ones included."),
		RunLostSteps:      f.Gauges("run_exposed_steps", "Steps that a crash of the node now would lose if only this level and safer ones survived it, by run and level.", "run", "level"),
		RunLostSeconds:    f.Gauges("run_exposed_seconds", "Time of work that a crash of the node now would lose if only this level and safer ones survived it, by run and level.", "run", "level"),
		RunRestores:       f.Counters("run_restores_total", "Steps that trainers opened and fetched from, by run.", "run"),
		RunRestoreSeconds: f.Counters("run_restore_seconds_total", "Time from the opening of those steps to the end of the last fetch, by run.", "run"),
	}
}
