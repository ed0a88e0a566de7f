package chunkserver

import (
	"time"

	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the collectors of a chunkserver.
type Metrics struct {
	WaitsExceeded                             *prometheus.CounterVec // requests that exceeded their wait for memory, by resource
	Puts                                      *prometheus.CounterVec // by outcome: ok, or the kind of error
	Gets                                      *prometheus.CounterVec
	PutBytes                                  prometheus.Counter // chunk bytes stored
	GetBytes                                  prometheus.Counter // chunk bytes served
	PutSeconds                                prometheus.Histogram
	GetSeconds                                prometheus.Histogram
	Heartbeats                                *prometheus.CounterVec // by outcome
	Outlived                                  prometheus.Counter     // refused answers of a metadata service of an older incarnation
	Deleted                                   prometheus.Counter     // chunks deleted
	Reported                                  prometheus.Counter     // chunks reported
	DevicesOut                                prometheus.Gauge       // devices of this host out of service
	MemoryBytes                               prometheus.Gauge       // lent to chunks in flight, as of the last heartbeat
	MemoryWaits                               prometheus.Counter     // requests that had to wait for memory
	MemoryDirty                               prometheus.Gauge       // chunks only in memory, as of the last heartbeat
	MemoryDeferred                            prometheus.Gauge       // of these the deferred ones
	DeferredWrites                            prometheus.Counter     // deferred chunks that were written because memory was short
	Settled                                   *prometheus.CounterVec // chunks that were only in memory, by outcome: written or gone
	MemoryKept                                prometheus.Gauge       // cached chunks, as of the last heartbeat
	MemoryHits, MemoryMisses, MemoryEvictions prometheus.Counter
	DeviceBytes                               prometheus.Gauge // used on all devices, as of the last heartbeat
	DeviceChunks                              prometheus.Gauge

	HeldBack *prometheus.CounterVec // requests delayed by a limit, by limit
	// BackgroundBytes are the bytes for other chunkservers' movers, by the limit
	// passed.
	BackgroundBytes *prometheus.CounterVec
	ScrubChunks     prometheus.Counter // chunks read and verified by scrubs
	ScrubParity     prometheus.Counter // stripes whose parity scrubs compared with their data
	ScrubBytes      prometheus.Counter
	ScrubBad        *prometheus.CounterVec // chunks that scrubs found bad, by cause
	Suspects        *prometheus.CounterVec // stripes verified because a client reported a chunk, by result

	Pieces       *prometheus.CounterVec // requests for bytes of objects, by outcome
	PieceBytes   prometheus.Counter     // bytes of objects served
	PieceFetches *prometheus.CounterVec // pieces read from the bucket, by outcome
	PieceMemory  prometheus.Gauge       // memory of pieces in flight and cached
	PieceWaits   prometheus.Counter     // fetches that waited for memory
	PiecesRotten prometheus.Counter     // pieces damaged in memory
	Stages       *prometheus.CounterVec // files for which staging was requested, by outcome
	Probes       *prometheus.CounterVec // of other servers, by outcome
}

// NewMetrics makes the collectors, and registers them with reg unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "chunkserver")
	m := &Metrics{
		WaitsExceeded:   limit.NewMetrics(reg, "chunkserver"),
		Puts:            f.Counters("puts_total", "Requests to put a chunk, by outcome.", "outcome"),
		Gets:            f.Counters("gets_total", "Requests to get a chunk or a range of it, by outcome.", "outcome"),
		PutBytes:        f.Counter("put_bytes_total", "Bytes of chunks stored."),
		GetBytes:        f.Counter("get_bytes_total", "Bytes of chunks served."),
		PutSeconds:      f.Histogram("put_seconds", "Time of a put, from its header to its sync.", 50e-6, 2, 18),
		GetSeconds:      f.Histogram("get_seconds", "Time of a get, until its bytes are read and verified.", 50e-6, 2, 18),
		Heartbeats:      f.Counters("heartbeats_total", "Heartbeats, by outcome.", "outcome"),
		Outlived:        f.Counter("outlived_answers_total", "Answers refused because they came from a metadata service of a superseded incarnation."),
		Deleted:         f.Counter("deleted_chunks_total", "Chunks deleted on request of the metadata service."),
		Reported:        f.Counter("reported_chunks_total", "Chunks reported to the metadata service."),
		DevicesOut:      f.Gauge("devices_out", "Devices of this host that are out of service."),
		MemoryBytes:     f.Gauge("memory_bytes", "Memory lent to chunks in flight."),
		MemoryWaits:     f.Counter("memory_waits_total", "Requests that waited for memory."),
		MemoryDirty:     f.Gauge("memory_dirty_bytes", "Memory of chunks that are only in memory: those being written to their devices, and the deferred ones."),
		MemoryDeferred:  f.Gauge("memory_deferred_bytes", "Memory of chunks that are only in memory because their step stays there by its policy."),
		DeferredWrites:  f.Counter("deferred_writes_total", "Chunks of steps that stay in memory which were written to a device because memory was short."),
		MemoryKept:      f.Gauge("memory_kept_bytes", "Memory of cached chunks."),
		MemoryHits:      f.Counter("memory_hits_total", "Reads of chunks that were in memory."),
		MemoryMisses:    f.Counter("memory_misses_total", "Reads of chunks that were not in memory."),
		MemoryEvictions: f.Counter("memory_evictions_total", "Chunks evicted from memory."),
		DeviceBytes:     f.Gauge("device_used_bytes", "Bytes used on all devices."),
		DeviceChunks:    f.Gauge("device_chunks", "Chunks on all devices."),
	}
	m.HeldBack = f.Counters("held_back_total", "Requests that a limit delayed, by limit: cpus, bandwidth, or share (movers of other hosts).", "by")
	m.BackgroundBytes = f.Counters("background_bytes_total", "Bytes written and read by movers of other hosts, by the limit they passed: alone, clients, or urgent.", "bound")
	m.Settled = f.Counters("settled_chunks_total", "Chunks committed at level memory, by outcome: written to the device, or gone.", "became")
	m.ScrubChunks = f.Counter("scrubbed_chunks_total", "Chunks that scrubs have read and verified.")
	m.ScrubBytes = f.Counter("scrubbed_bytes_total", "Bytes that scrubs have read and verified.")
	m.ScrubParity = f.Counter("scrubbed_parity_stripes_total", "Stripes whose parity scrubs have compared with their data.")
	m.Suspects = f.Counters("verified_reports_total", "Stripes whose chunks were verified because a client reported one as bad, by result: good or bad.", "result")
	m.ScrubBad = f.Counters("scrub_bad_chunks_total", "Bad chunks that scrubs found and queued for repair, by cause: corrupt, misplaced, missing, or parity.", "found")
	m.Pieces = f.Counters("piece_gets_total", "Requests for bytes of an object, by outcome.", "outcome")
	m.PieceBytes = f.Counter("piece_get_bytes_total", "Bytes of objects served.")
	m.PieceFetches = f.Counters("piece_fetches_total", "Pieces of objects read from the bucket, by outcome.", "outcome")
	m.PieceMemory = f.Gauge("piece_memory_bytes", "Memory lent to pieces of objects, in flight and cached.")
	m.PieceWaits = f.Counter("piece_memory_waits_total", "Fetches of pieces that waited for memory.")
	m.PiecesRotten = f.Counter("piece_rotten_total", "Pieces of objects with a checksum mismatch in memory; they are dropped, and read again.")
	m.Stages = f.Counters("stages_asked_total", "Requests to stage a file because it was read, by outcome.", "outcome")
	m.Probes = f.Counters("probes_total", "Attempts to open a new, authenticated connection to each address of another server, by outcome: ok or failed.", "outcome")
	return m
}

// memoryPatience limits how long a request without a deadline waits for memory.
const memoryPatience = time.Minute

// waitFor says how requests wait for a limited resource.
func waitFor(resource string, deps Deps) limit.Resource {
	return limit.Resource{Name: resource, Patience: memoryPatience, Advice: "raise the chunkserver's memory, or look for a slow device or bucket",
		Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}
}
