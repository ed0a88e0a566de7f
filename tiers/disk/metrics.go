package disk

import (
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
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
	f := metric.For(reg, "disk")
	return &Metrics{
		WaitsExceeded: limit.NewMetrics(reg, "disk"),
		Syncs:         f.Counter("syncs_total", "Syncs of segments."),
		SyncSeconds:   f.Histogram("sync_seconds", "Time of a sync of a segment.", 25e-6, 2, 18),
		WrittenBytes:  f.Counter("written_bytes_total", "Bytes of records written, with head and padding."),
		ReadBytes:     f.Counter("read_bytes_total", "Bytes read from segments to serve chunks."),
		CorruptReads:  f.Counter("corrupt_reads_total", "Reads that found a checksum mismatch."),
		Reclaimed:     f.Counter("reclaimed_bytes_total", "Bytes of dead records returned to the file system."),
		Failures:      f.Counter("failures_total", "Devices taken out of service by an error."),
		Recovered:     f.Counter("recovered_records_total", "Records replayed when a device was opened."),
		TornRecords:   f.Counter("torn_records_total", "Unfinished records voided when a device was opened."),
	}
}
