package disk

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the collectors of all devices of a process. No label has values that
// grow with the data.
type Metrics struct {
	WaitsExceeded *prometheus.CounterVec // waits for a buffer that exceeded their limit, by resource
	Syncs         prometheus.Counter     // syncs of segments
	SyncSeconds   prometheus.Histogram   // duration of each
	WrittenBytes  prometheus.Counter     // records written, with head and padding
	ReadBytes     prometheus.Counter     // read from segments to serve chunks
	CorruptReads  prometheus.Counter     // reads that found a checksum mismatch
	Reclaimed     prometheus.Counter     // bytes reclaimed for the file system
	Failures      prometheus.Counter     // devices taken out of service
	Recovered     prometheus.Counter     // records replayed when a device was opened
	TornRecords   prometheus.Counter     // unfinished records voided when a device was opened
}

// NewMetrics makes the collectors, and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_disk_" + name, Help: help})
	}
	m := &Metrics{
		WaitsExceeded: limit.NewMetrics(reg, "disk"),
		Syncs:         counter("syncs_total", "Syncs of segments."),
		SyncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "moraine_disk_sync_seconds", Help: "Time of a sync of a segment.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 2, 18)}),
		WrittenBytes: counter("written_bytes_total", "Bytes of records written, with head and padding."),
		ReadBytes:    counter("read_bytes_total", "Bytes read from segments to serve chunks."),
		CorruptReads: counter("corrupt_reads_total", "Reads that found a checksum mismatch."),
		Reclaimed:    counter("reclaimed_bytes_total", "Bytes of dead records returned to the file system."),
		Failures:     counter("failures_total", "Devices taken out of service by an error."),
		Recovered:    counter("recovered_records_total", "Records replayed when a device was opened."),
		TornRecords:  counter("torn_records_total", "Unfinished records voided when a device was opened."),
	}
	if reg != nil {
		reg.MustRegister(m.Syncs, m.SyncSeconds, m.WrittenBytes, m.ReadBytes, m.CorruptReads, m.Reclaimed,
			m.Failures, m.Recovered, m.TornRecords)
	}
	return m
}
