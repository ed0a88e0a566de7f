package chunkserver

import (
	"time"

	"github.com/morainefs/moraine/internal/limit"
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
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "moraine_chunkserver_" + name, Help: help})
	}
	outcomes := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_" + name, Help: help}, []string{"outcome"})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "moraine_chunkserver_" + name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "moraine_chunkserver_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18)})
	}
	m := &Metrics{
		WaitsExceeded:   limit.NewMetrics(reg, "chunkserver"),
		Puts:            outcomes("puts_total", "Requests to put a chunk, by outcome."),
		Gets:            outcomes("gets_total", "Requests to get a chunk or a range of it, by outcome."),
		PutBytes:        counter("put_bytes_total", "Bytes of chunks stored."),
		GetBytes:        counter("get_bytes_total", "Bytes of chunks served."),
		PutSeconds:      seconds("put_seconds", "Time of a put, from its header to its sync."),
		GetSeconds:      seconds("get_seconds", "Time of a get, until its bytes are read and verified."),
		Heartbeats:      outcomes("heartbeats_total", "Heartbeats, by outcome."),
		Outlived:        counter("outlived_answers_total", "Answers refused because they came from a metadata service of a superseded incarnation."),
		Deleted:         counter("deleted_chunks_total", "Chunks deleted on request of the metadata service."),
		Reported:        counter("reported_chunks_total", "Chunks reported to the metadata service."),
		DevicesOut:      gauge("devices_out", "Devices of this host that are out of service."),
		MemoryBytes:     gauge("memory_bytes", "Memory lent to chunks in flight."),
		MemoryWaits:     counter("memory_waits_total", "Requests that waited for memory."),
		MemoryDirty:     gauge("memory_dirty_bytes", "Memory of chunks that are only in memory, and being written to their devices."),
		MemoryKept:      gauge("memory_kept_bytes", "Memory of cached chunks."),
		MemoryHits:      counter("memory_hits_total", "Reads of chunks that were in memory."),
		MemoryMisses:    counter("memory_misses_total", "Reads of chunks that were not in memory."),
		MemoryEvictions: counter("memory_evictions_total", "Chunks evicted from memory."),
		DeviceBytes:     gauge("device_used_bytes", "Bytes used on all devices."),
		DeviceChunks:    gauge("device_chunks", "Chunks on all devices."),
	}
	m.HeldBack = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_held_back_total",
		Help: "Requests delayed by a limit, by limit: cpus, bandwidth, or, for movers of other hosts, their share."}, []string{"by"})
	m.BackgroundBytes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_background_bytes_total",
		Help: "Bytes put and got by movers of other hosts, by the limit they passed: alone, clients, or urgent."}, []string{"bound"})
	m.Settled = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_settled_chunks_total",
		Help: "Chunks committed at level memory, by outcome: written to the device, or gone."}, []string{"became"})
	m.ScrubChunks = counter("scrubbed_chunks_total", "Chunks that scrubs have read and verified.")
	m.ScrubBytes = counter("scrubbed_bytes_total", "Bytes that scrubs have read and verified.")
	m.ScrubParity = counter("scrubbed_parity_stripes_total", "Stripes whose parity scrubs have compared with their data.")
	m.Suspects = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_verified_reports_total",
		Help: "Stripes whose chunks were verified because a client reported one as bad, by result: good or bad."}, []string{"result"})
	m.ScrubBad = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moraine_chunkserver_scrub_bad_chunks_total",
		Help: "Bad chunks that scrubs found and queued for repair, by cause: corrupt, misplaced, missing, or parity."}, []string{"found"})
	m.Pieces = outcomes("piece_gets_total", "Requests for bytes of an object, by outcome.")
	m.PieceBytes = counter("piece_get_bytes_total", "Bytes of objects served.")
	m.PieceFetches = outcomes("piece_fetches_total", "Pieces of objects read from the bucket, by outcome.")
	m.PieceMemory = gauge("piece_memory_bytes", "Memory lent to pieces of objects, in flight and cached.")
	m.PieceWaits = counter("piece_memory_waits_total", "Fetches of pieces that waited for memory.")
	m.PiecesRotten = counter("piece_rotten_total", "Pieces of objects with a checksum mismatch in memory; they are dropped, and read again.")
	m.Stages = outcomes("stages_asked_total", "Requests to stage a file because it was read, by outcome.")
	m.Probes = outcomes("probes_total", "Attempts to open a new, authenticated connection to each address of another server, by outcome: ok or failed.")
	if reg != nil {
		reg.MustRegister(m.Probes, m.MemoryDirty, m.Settled, m.HeldBack, m.BackgroundBytes, m.ScrubChunks, m.ScrubBytes, m.ScrubParity, m.ScrubBad, m.Suspects)
		reg.MustRegister(m.Pieces, m.PieceBytes, m.PieceFetches, m.PieceMemory, m.PieceWaits, m.PiecesRotten, m.Stages)
		reg.MustRegister(m.Puts, m.Gets, m.PutBytes, m.GetBytes, m.PutSeconds, m.GetSeconds, m.Heartbeats, m.Outlived, m.Deleted,
			m.Reported, m.DevicesOut, m.MemoryBytes, m.MemoryWaits, m.MemoryKept, m.MemoryHits, m.MemoryMisses, m.MemoryEvictions, m.DeviceBytes, m.DeviceChunks)
	}
	return m
}

// memoryPatience limits how long a request without a deadline waits for memory.
const memoryPatience = time.Minute

// waitFor says how requests wait for a limited resource.
func waitFor(resource string, deps Deps) limit.Resource {
	return limit.Resource{Name: resource, Patience: memoryPatience, Advice: "raise the chunkserver's memory, or look for a slow device or bucket",
		Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}
}
