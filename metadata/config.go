package metadata

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/transport"
)

// DefaultRepairGrace is the default of Config.RepairGrace.
const DefaultRepairGrace = 10 * time.Minute

// maxHorizon is the largest Config.BackupHorizon.
const maxHorizon = 366 * 24 * time.Hour

// Config has the operator's settings. Zero values are replaced by the defaults in parentheses.
type Config struct {
	// Node is this server's ID, as in its certificate.
	Node string
	// Peers are all metadata servers of the cluster, including this one.
	Peers []Peer
	// Join: a server with a new directory waits to be added to an existing cluster instead of
	// starting one with Peers.
	Join bool
	// Release names the build in texts.
	Release string
	// Future makes the server act as one of a later release, which supports another feature level
	// (state.NewFuture). Hasty makes it propose above the cluster's feature level, as no release
	// does. Only tests of upgrades set them.
	Future, Hasty bool
	// Cluster is the cluster's identity. The first leader writes it, and every later one refuses a
	// state with another. Required.
	Cluster moraine.UUID

	// SessionTimeout is how long a session lives after its last renewal (60 s).
	SessionTimeout time.Duration
	// MaxSessions bounds the live sessions of one certificate (65,536).
	MaxSessions int
	// Grace is how long dead chunks are kept, in cluster time, before the leader sends their
	// deletion to the devices (60 s). It must be longer than any reader uses extents that it
	// fetched.
	Grace time.Duration
	// Suspect is how long a host may be silent before placement avoids it (3 s).
	Suspect time.Duration
	// SettleTime is how long after the end of a mover's lease a bucket change with
	// a lost reply may still arrive. It is the age up to which the store accepts a
	// signature (15 min). All servers of a cluster must have the same value.
	SettleTime time.Duration
	// RepairGrace is how long a host may be silent before its devices go out and their chunks are
	// rebuilt elsewhere (10 min).
	RepairGrace time.Duration
	// TokenLife is how long a session token is valid (10 min). The leader issues a new one at each
	// renewal that requests one.
	TokenLife time.Duration
	// KeyLife is the age at which the signing key of tokens is replaced (24 h).
	KeyLife time.Duration
	// MinProtection is the number of hosts whose loss every new stripe must survive while too few
	// are up for its scheme (1). A write that cannot get this waits.
	MinProtection int
	// MaxRepairs bounds the repair jobs at a time (16).
	MaxRepairs int
	// RepairsPerSecond bounds the stripes given to repair jobs per second (256).
	RepairsPerSecond int
	// SlowTimes is the factor by which writes or reads on a device may exceed its peers' before the
	// leader drains it (10; negative: never).
	SlowTimes int
	// RewriteLive is the percentage of a stripe in use up to which it is rewritten (25; negative:
	// never). At 25 percent, freeing one byte costs reading and writing a third of a byte; at 50
	// percent it costs a whole one.
	RewriteLive int
	// RewriteEvery is how often the leader searches all files for such stripes (1
	// h), and how old the stripes must be. Newer ones may be about to be
	// overwritten.
	RewriteEvery time.Duration
	// RewriteBytesPerSecond bounds the bytes per second that all movers together read and write for
	// rewrites (32 MiB).
	RewriteBytesPerSecond int64
	// PackAfter is how long nobody must have changed a small file before it is
	// packed with others (24 h). Negative means never, as does a negative
	// RewriteLive.
	PackAfter time.Duration
	// BackupDir is where the leader keeps its automatic backups of the metadata; empty: it makes
	// none. BackupEvery is the interval (6 h), BackupKeep the number kept (4).
	BackupDir   string
	BackupEvery time.Duration
	// CheckEvery is how often the leader checks its whole state (24 h; negative: never).
	CheckEvery time.Duration
	BackupKeep int
	// BackupHorizon is how long, in cluster time, chunks of stripes without files are kept because
	// a backup of the metadata may name them. A backup within the horizon restores completely.
	// Devices that become full delete such chunks earlier. (Default: BackupEvery times BackupKeep
	// if the leader makes backups, else none; negative: none.)
	BackupHorizon time.Duration
	// SharesDisk says that the devices and the metadata share a disk, as on a single machine. While
	// that disk is nearly full, devices delete chunks kept for the horizon.
	SharesDisk bool
	// RunnerKeys is the number of keys that one piece of a leader's job may touch (512), and
	// RunnerPieces the number of pieces per second (200).
	RunnerKeys, RunnerPieces int

	// EntryCommands and EntryBytes bound the commands in one Raft entry (256, 1 MiB).
	// EntriesInFlight bounds the entries proposed at once (8). QueuedCommands bounds the commands
	// that wait for an entry (8,192). When the queue is full, callers wait at the door until their
	// deadline.
	EntryCommands, EntryBytes       int
	EntriesInFlight, QueuedCommands int
}

// Peer is one metadata server with the addresses for clients.
type Peer struct {
	ID           string
	Addresses    []string // host:port or unix:PATH
	AdminAddress string   // address of metrics and health checks
}

// Deps are the dependencies that tests replace.
type Deps struct {
	// NewStore makes the replicated store that applies its entries to fsm. It must not start
	// anything. Required.
	NewStore func(fsm FSM) (Store, error)
	// Dial returns another metadata server. It is nil if there is none to reach: the server then
	// enters without asking, and reports itself to nobody.
	Dial func(addrs []string) transport.Metadata
	// HeedRevoked, if not nil, receives the list of revoked certificates whenever it changes.
	HeedRevoked func(*transport.Revocations)
	FS          vfs.FS      // file system of backups; default: the machine's
	Clock       clock.Clock // default: the machine's
	Rand        io.Reader   // source of keys; default: the machine's
	Secrets     Secrets     // default: in memory, lost with the server
	Log         *slog.Logger
	Metrics     *lead.Metrics // default: not registered anywhere
	// Expires returns when this server's certificate expires; nil if the servers have none.
	Expires func() time.Time
}

func (c *Config) setDefaults() {
	c.SessionTimeout = cmp.Or(c.SessionTimeout, time.Minute)
	c.MaxSessions = cmp.Or(c.MaxSessions, DefaultMaxSessions)
	c.Grace = cmp.Or(c.Grace, time.Minute)
	c.Suspect = cmp.Or(c.Suspect, 3*time.Second)
	c.SettleTime = cmp.Or(c.SettleTime, jobs.DefaultSettleMillis*time.Millisecond)
	c.RepairGrace = cmp.Or(c.RepairGrace, DefaultRepairGrace)
	c.TokenLife = cmp.Or(c.TokenLife, 10*time.Minute)
	c.KeyLife = cmp.Or(c.KeyLife, 24*time.Hour)
	c.MinProtection = cmp.Or(c.MinProtection, 1)
	c.MaxRepairs = cmp.Or(c.MaxRepairs, 16)
	c.RepairsPerSecond = cmp.Or(c.RepairsPerSecond, 256)
	c.SlowTimes = cmp.Or(c.SlowTimes, 10)
	c.RewriteLive = cmp.Or(c.RewriteLive, 25)
	c.RewriteEvery = cmp.Or(c.RewriteEvery, time.Hour)
	c.PackAfter = cmp.Or(c.PackAfter, 24*time.Hour)
	c.RewriteBytesPerSecond = cmp.Or(c.RewriteBytesPerSecond, 32<<20)
	c.BackupEvery = cmp.Or(c.BackupEvery, 6*time.Hour)
	c.CheckEvery = cmp.Or(c.CheckEvery, 24*time.Hour)
	c.BackupKeep = cmp.Or(c.BackupKeep, 4)
	if c.BackupDir != "" {
		c.BackupHorizon = cmp.Or(c.BackupHorizon, min(c.BackupEvery*time.Duration(c.BackupKeep), maxHorizon))
	}
	c.BackupHorizon = max(c.BackupHorizon, 0)
	c.RunnerKeys = cmp.Or(c.RunnerKeys, 512)
	c.RunnerPieces = cmp.Or(c.RunnerPieces, 200)
	c.EntryCommands = cmp.Or(c.EntryCommands, 256)
	c.EntryBytes = cmp.Or(c.EntryBytes, 1<<20)
	c.EntriesInFlight = cmp.Or(c.EntriesInFlight, 8)
	c.QueuedCommands = cmp.Or(c.QueuedCommands, 8192)
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "metadata.New", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case c.Node == "":
		return bad("the node id is missing: set Node")
	case c.Cluster.IsZero():
		return bad("the identity of the cluster is missing: set Cluster")
	case c.SettleTime < time.Second:
		return bad("the time for a change of the bucket to settle is %v, but must be at least a second", c.SettleTime)
	case c.SlowTimes >= 0 && c.SlowTimes < 2:
		return bad("the factor for slow devices is %d, but must be at least 2, or -1 to drain none", c.SlowTimes)
	case c.RepairGrace < c.Suspect:
		return bad("the grace period before repair (%v) is shorter than the time until a host is silent (%v)", c.RepairGrace, c.Suspect)
	case c.SessionTimeout < 2*lead.TickEvery:
		return bad("the session timeout is %v, but must be at least %v", c.SessionTimeout, 2*lead.TickEvery)
	case c.MaxSessions < 1:
		return bad("the limit of sessions of one certificate is %d, but must be at least 1", c.MaxSessions)
	case c.EntryCommands < 1 || c.EntriesInFlight < 1 || c.QueuedCommands < 1 || c.EntryBytes < 1:
		return bad("the limits of log entries and commands must be at least 1")
	case c.MinProtection < 1 || c.MinProtection >= moraine.MaxChunks:
		return bad("the minimum protection is %d, but must be 1 to %d", c.MinProtection, moraine.MaxChunks-1)
	case c.RewriteLive > 90:
		return bad("the limit of live bytes for a rewrite is %d%%, but must be at most 90%%", c.RewriteLive)
	case c.RewriteEvery < time.Second || c.RewriteBytesPerSecond < 1<<16:
		return bad("the interval of rewrites is %v and their rate %d bytes per second, but must be at least a second and 64 KiB", c.RewriteEvery, c.RewriteBytesPerSecond)
	case c.BackupHorizon > maxHorizon:
		return bad("the backup horizon is %v, but must be at most a year", c.BackupHorizon)
	case c.BackupEvery < time.Second || c.BackupKeep < 1:
		return bad("the interval of backups is %v and their number %d, but must be at least a second and 1", c.BackupEvery, c.BackupKeep)
	case c.MaxRepairs < 1 || c.RepairsPerSecond < 1 || c.RunnerKeys < 1 || c.RunnerPieces < 1:
		return bad("the limits of jobs must be at least 1")
	}
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.ID == "" || seen[p.ID] {
			return bad("peer %q has no name, or is named twice", p.ID)
		}
		seen[p.ID] = true
	}
	if len(c.Peers) > 0 && !seen[c.Node] {
		return bad("node %q is not among the peers", c.Node)
	}
	return nil
}

func (d *Deps) setDefaults() {
	d.FS = cmp.Or[vfs.FS](d.FS, vfs.OS{})
	d.Clock = cmp.Or[clock.Clock](d.Clock, clock.System{})
	if d.Secrets == nil {
		d.Secrets = &memorySecrets{}
	}
	d.Rand = cmp.Or[io.Reader](d.Rand, rand.Reader)
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	if d.Metrics == nil {
		d.Metrics = lead.NewMetrics(nil)
	}
}
