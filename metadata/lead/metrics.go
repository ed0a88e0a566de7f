package lead

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/metric"
)

// Metrics are the metrics of a metadata server. All are named moraine_metadata_*.
type Metrics struct {
	WaitsExceeded *prometheus.CounterVec   // commands refused because the queue was full, by resource
	Requests      *prometheus.CounterVec   // by request and outcome
	BatchCommands prometheus.Histogram     // commands in one Raft entry
	BatchBytes    prometheus.Histogram     // bytes of one Raft entry
	ProposeWait   prometheus.Histogram     // from a command's arrival to its result
	Apply         *prometheus.HistogramVec // time of one command in the state machine, by command
	ApplyLongest  *prometheus.GaugeVec     // longest since the start, by command
	QueueFull     prometheus.Counter       // commands that waited for a place in the queue
	Leading       prometheus.Gauge
	Leaderships   prometheus.Counter
	Outlived      prometheus.Counter // reports of an incarnation newer than this server's
	Ticks         prometheus.Counter
	ClockGaps     prometheus.Counter // ticks so late that every term began again
	CatchUps      prometheus.Counter // rebuilds of the leader's memory after a lost answer
	Sessions      prometheus.Gauge
	Expired       prometheus.Counter // sessions
	// SessionsRefused are sessions refused because the certificate had too many.
	SessionsRefused prometheus.Counter
	Revoked         prometheus.Gauge // certificates on the revocation list
	LiveHosts       leaderGauge
	SilentHosts     leaderGauge
	UnknownHosts    leaderGauge // hosts not known to be up or silent
	// UnreachableHosts are hosts to which peers cannot connect. FailingBuckets are buckets that do
	// not answer a host. EndedGrants are ranges of ended grants in the state.
	UnreachableHosts, FailingBuckets, EndedGrants leaderGauge
	CheckProblems, CheckAge                       leaderGauge // from the last check of the state
	// UnreportedDevices are devices in use without a full report since they booted.
	UnreportedDevices leaderGauge
	DevicesOut        prometheus.Counter // devices taken out because their host was silent
	RepairQueue       leaderGauge        // stripes
	RepairRunning     leaderGauge        // stripes that jobs work on
	RepairTasks       prometheus.Counter // stripes given to repair jobs
	RebalanceLeft     prometheus.Gauge   // bytes
	// Chunks and bytes moved between devices to balance them.
	RebalancedChunks, RebalancedBytes    prometheus.Counter
	RewriteStripes, PackFiles            prometheus.Counter // given to movers
	StripesDeadBytes                     prometheus.Gauge
	KeptBytes, PendingBytes              prometheus.Gauge
	InlineFiles, InlineBytes             prometheus.Gauge // contents of small files in the state
	BackupHorizon                        prometheus.Gauge
	JobPieces                            prometheus.Counter // pieces of jobs run by the leader
	JobsLeased                           prometheus.Counter
	Deletions                            prometheus.Counter     // sent to chunkservers
	UnknownChunks                        prometheus.Counter     // chunks reported and explained by nothing
	MissingChunks                        prometheus.Counter     // chunks recorded and not reported by their device
	Suspects, SuspectsRefused            prometheus.Counter     // chunks that clients reported as bad
	BackupAge, BackupBytes, BackupFailed prometheus.Gauge       // of the backups that the leader makes automatically
	AdoptedChunks                        prometheus.Counter     // chunks adopted by a record that named another device
	DamagedChunks                        prometheus.Counter     // chunks that scrubs found to differ from their record
	StepsAborted                         prometheus.Counter     // checkpoints aborted because their ranks were silent
	PolicySteps                          *prometheus.CounterVec // steps changed by the policy of checkpoints, by action
	Leases                               prometheus.Gauge
	LeaseSessions                        prometheus.Gauge // sessions that may have cache leases
	LeasesGranted                        prometheus.Counter
	Recalls                              prometheus.Counter
	Reclaims                             prometheus.Counter // sessions that came back with cache leases
	LeasesRanOut                         prometheus.Counter // sessions whose cache leases expired
	LeaseWaits                           prometheus.Counter // answers that waited for recalls
	DelegationsGranted                   prometheus.Counter // directories
	DelegationsRecalled                  prometheus.Counter
	DelegationsEnded                     prometheus.Counter
	DelegationsRevoked                   prometheus.Counter   // sessions
	DelegationWaits                      prometheus.Counter   // requests and jobs that met delegations
	DelegationWait                       prometheus.Histogram // seconds
	BatchChanges                         prometheus.Counter
}

// leaderGauge is a gauge that only a leader knows. It does not exist until it is set or after the
// leadership ends, so that unknown does not read as 0.
type leaderGauge struct{ vec *prometheus.GaugeVec }

// Set sets the gauge.
func (g leaderGauge) Set(v float64) { g.vec.WithLabelValues().Set(v) }

// applyBuckets has a boundary at 100 ms, the longest time that a command may take.
var applyBuckets = []float64{20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5}

// NewMetrics makes the metrics and registers them with reg, if that is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := metric.For(reg, "metadata")
	m := &Metrics{
		WaitsExceeded:     limit.NewMetrics(reg, "metadata"),
		Requests:          f.Counters("requests_total", "Requests answered, by request and outcome.", "request", "outcome"),
		BatchCommands:     f.Histogram("entry_commands", "Commands packed into one Raft entry.", 1, 2, 9),
		BatchBytes:        f.Histogram("entry_bytes", "Size of one Raft entry.", 64, 4, 8),
		ProposeWait:       f.Histogram("propose_seconds", "From a command's arrival to its result.", 50e-6, 2, 18),
		QueueFull:         f.Counter("queue_full_total", "Commands that found the queue full and waited."),
		Leading:           f.Gauge("leading", "1 while this server leads."),
		Outlived:          f.Counter("outlived_total", "Times that a server or a chunkserver reported a later incarnation of the metadata than this server's."),
		Leaderships:       f.Counter("leaderships_total", "How often this server began to lead."),
		Ticks:             f.Counter("ticks_total", "Steps of cluster time."),
		ClockGaps:         f.Counter("clock_gaps_total", "Times the process of the leader did nothing for two seconds, so that the leader renewed every session and host for a full term."),
		CatchUps:          f.Counter("catch_ups_total", "Times that the leader read the state again because the answer to an entry was lost."),
		Sessions:          f.Gauge("sessions", "Live sessions."),
		Expired:           f.Counter("sessions_expired_total", "Sessions ended because they were not renewed."),
		SessionsRefused:   f.Counter("sessions_refused_total", "Sessions refused because the certificate had reached its limit (--max-sessions)."),
		Revoked:           f.Gauge("revoked_certificates", "Entries of the list of revoked certificates, of 4,096 at most."),
		LiveHosts:         leaderGauge{f.Gauges("live_hosts", "Hosts whose heartbeats arrive.")},
		UnknownHosts:      leaderGauge{f.Gauges("unknown_hosts", "Registered hosts from which the current leader has received nothing yet.")},
		UnreportedDevices: leaderGauge{f.Gauges("unreported_devices", "Devices in use without a whole report of their chunks since they booted.")},
		UnreachableHosts:  leaderGauge{f.Gauges("unreachable_hosts", "Hosts that are up, and to which the chunkservers that probe them get no authenticated connection.")},
		FailingBuckets:    leaderGauge{f.Gauges("failing_buckets", "Buckets that do not answer a host that serves them.")},
		EndedGrants:       leaderGauge{f.Gauges("ended_grants", "Ended grants, or ranges of them, kept because a device has not reported since; 100,000 at most are counted.")},
		CheckProblems:     leaderGauge{f.Gauges("check_problems", "Problems that the last check of the whole state found.")},
		CheckAge:          leaderGauge{f.Gauges("check_age_seconds", "Age of the last check of the whole state.")},
		SilentHosts:       leaderGauge{f.Gauges("silent_hosts", "Registered hosts whose heartbeats do not arrive.")},
		DevicesOut:        f.Counter("devices_declared_out_total", "Devices declared out because their host was silent."),
		RepairQueue:       leaderGauge{f.Gauges("repair_queue_stripes", "Stripes waiting for repair.")},
		RepairRunning:     leaderGauge{f.Gauges("repair_running_stripes", "Stripes that repair jobs work on.")},
		RepairTasks:       f.Counter("repair_tasks_total", "Stripes given to repair jobs."),
		JobPieces:         f.Counter("job_pieces_total", "Pieces of jobs run by the leader."),
		JobsLeased:        f.Counter("jobs_leased_total", "Leases of jobs given to movers."),
		Deletions:         f.Counter("deletions_sent_total", "Chunk deletions sent to chunkservers."),
		UnknownChunks:     f.Counter("unknown_chunks_total", "Reported chunks that nothing explains."),
		DamagedChunks:     f.Counter("scrub_damaged_chunks_total", "Chunks that scrubs read without error and that differ from their stripe records."),
		BackupAge:         f.Gauge("backup_age_seconds", "Age of the newest backup that the leader has taken by itself; 0: there is none."),
		BackupBytes:       f.Gauge("backup_bytes", "Size of that backup."),
		BackupFailed:      f.Gauge("backup_failed", "1 while the last backup that the leader tried to take by itself has failed."),
		AdoptedChunks:     f.Counter("adopted_chunks_total", "Chunks found on another device than their record named, where the named one was gone. The record names them now."),
		Suspects:          f.Counter("suspected_chunks_total", "Chunks that clients reported as bad, and that their chunkserver was to verify."),
		SuspectsRefused:   f.Counter("suspected_chunks_refused_total", "Reports of bad chunks that the leader ignored because the certificate sent too many."),
		MissingChunks:     f.Counter("missing_chunks_total", "Recorded chunks that their device does not hold."),
		StepsAborted:      f.Counter("steps_aborted_total", "Checkpoints aborted because ranks fell silent."),
		PolicySteps:       f.Counters("policy_steps_total", "Steps that the policy of checkpoints removed, or moved between the devices and the bucket, by action.", "action"),
	}
	m.Apply = f.Histograms("apply_seconds", "Time to apply one command to the state, by command.", applyBuckets, "command")
	m.ApplyLongest = f.Gauges("apply_longest_seconds", "Longest time that one command took to apply since the server started, by command.", "command")
	m.RebalanceLeft = f.Gauge("rebalance_left_bytes", "Bytes to move between devices until the fill of each is within the band.")
	m.RebalancedChunks = f.Counter("rebalanced_chunks_total", "Chunks moved to emptier devices.")
	m.RebalancedBytes = f.Counter("rebalanced_bytes_total", "Bytes of chunks moved to emptier devices.")
	m.RewriteStripes = f.Counter("rewrite_stripes_total", "Stripes given to movers to be rewritten: files used only a little of them, or they were small and many.")
	m.PackFiles = f.Counter("pack_files_total", "Small files given to movers to be packed with each other.")
	m.KeptBytes = f.Gauge("kept_bytes", "Bytes of chunks that no file names any more and that are kept for the backup horizon.")
	m.InlineFiles = f.Gauge("inline_files", "Contents of small files that the metadata keeps. Clones share one.")
	m.InlineBytes = f.Gauge("inline_bytes", "Bytes of small files that the metadata keeps, of 1 GiB at most.")
	m.PendingBytes = f.Gauge("pending_bytes", "Bytes of dead chunks that wait for their deletion; not those that are kept for backups.")
	m.BackupHorizon = f.Gauge("backup_horizon_seconds", "How long the cluster has kept all of these chunks: the age up to which a backup restores whole.")
	m.StripesDeadBytes = f.Gauge("stripes_dead_bytes", "Dead bytes in stripes that are in use, as of the last scan of all files.")
	m.Leases = f.Gauge("leases", "Leases that sessions hold.")
	m.LeaseSessions = f.Gauge("lease_sessions", "Sessions with a standing to hold leases.")
	m.LeasesGranted = f.Counter("leases_granted_total", "Leases granted with answers, those held already included.")
	m.Recalls = f.Counter("lease_recalls_total", "Recalls sent to sessions.")
	m.Reclaims = f.Counter("lease_reclaims_total", "Sessions that came back with leases of an earlier connection to a leader.")
	m.LeasesRanOut = f.Counter("lease_sessions_ran_out_total", "Sessions whose leases were not renewed in time.")
	m.DelegationsGranted = f.Counter("delegations_granted_total", "Directories delegated to sessions that requested it. New directories in a batch are not counted.")
	m.DelegationsRecalled = f.Counter("delegations_recalled_total", "Recalls of delegations, because requests of others met them.")
	m.DelegationsEnded = f.Counter("delegations_ended_total", "Delegations that have ended while their session lived.")
	m.DelegationsRevoked = f.Counter("delegations_revoked_total", "Sessions whose delegations were revoked because they did not end one in time.")
	m.DelegationWaits = f.Counter("delegation_waits_total", "How often a request or a job met delegations and waited.")
	m.DelegationWait = f.Histogram("delegation_wait_seconds", "How long such a wait took.", 1e-3, 2, 14)
	m.BatchChanges = f.Counter("batch_changes_total", "Changes in batches of sessions with delegations.")
	m.LeaseWaits = f.Counter("lease_waits_total", "Answers that waited until recalls were carried out.")
	return m
}

// StopLeading clears the gauges that only a leader knows.
func (m *Metrics) StopLeading() {
	for _, g := range []leaderGauge{m.LiveHosts, m.UnreachableHosts, m.FailingBuckets, m.EndedGrants, m.CheckProblems, m.CheckAge, m.SilentHosts, m.UnknownHosts, m.UnreportedDevices, m.RepairQueue, m.RepairRunning} {
		g.vec.Reset()
	}
	for _, g := range []prometheus.Gauge{m.Leading, m.Sessions,
		m.Leases, m.LeaseSessions, m.RebalanceLeft, m.StripesDeadBytes, m.KeptBytes, m.PendingBytes, m.InlineFiles, m.InlineBytes, m.BackupHorizon, m.BackupAge, m.BackupBytes, m.BackupFailed} {
		g.Set(0)
	}
}
