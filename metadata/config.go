package metadata

import (
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

// DefaultRepairGrace is Config.RepairGrace where it is not set.
const DefaultRepairGrace = 10 * time.Minute

// maxHorizon is the longest Config.BackupHorizon.
const maxHorizon = 366 * 24 * time.Hour

// Config is what an operator may set. Zero values are replaced by the defaults
// that are named beside them.
type Config struct {
	// Node is this server's id, as in its certificate.
	Node string
	// Peers are all metadata servers of the cluster, this one too.
	Peers []Peer
	// Join: where this server's directory is new, the server waits to be added to
	// a cluster that exists, rather than to begin one with Peers.
	Join bool
	// Release names the build, for people.
	Release string
	// Cluster is the identity of the cluster: the first leader writes it, and
	// every later one refuses a state of another. Required.
	Cluster moraine.UUID

	// SessionTimeout is how long a session lives after its last renewal (60 s).
	SessionTimeout time.Duration
	// MaxSessions bounds the live sessions of one certificate (65,536).
	MaxSessions int
	// Grace is for how long, in cluster time, what is dead is kept before its
	// deletion is sent to the devices that hold it (60 s). It must be longer
	// than any reader goes on with extents that it fetched.
	Grace time.Duration
	// Suspect is how long a host may be silent before nothing new is placed on
	// it (3 s).
	Suspect time.Duration
	// SettleTime is how long after the end of a mover's lease a change of the
	// bucket whose reply nobody saw may still arrive: the age up to which the
	// store takes a signature (15 min). Every server of a cluster has the same.
	SettleTime time.Duration
	// RepairGrace is how long a host may be silent before its devices are
	// declared out and what they hold is rebuilt elsewhere (10 min).
	RepairGrace time.Duration
	// TokenLife is how long a session token is good for (10 min); a token is
	// issued anew at each renewal that asks for one.
	TokenLife time.Duration
	// KeyLife is the age at which the key that signs tokens is replaced (24 h).
	KeyLife time.Duration
	// MinProtection is how many hosts every new stripe must be able to lose while
	// too few are alive for its scheme (1); a write that cannot have that waits.
	MinProtection int
	// MaxRepairs bounds the repair jobs that exist at once (16).
	MaxRepairs int
	// RepairsPerSecond bounds the stripes that are given to repair jobs (256).
	RepairsPerSecond int
	// SlowTimes is how many times as long as on its peers puts or reads take on a device that
	// is drained for it (10; negative: none is).
	SlowTimes int
	// RewriteLive is of how many hundredths of a stripe files may name at most for it to be
	// rewritten (25; negative: none is). To free a byte of such a stripe takes a third of
	// one that is read and written again; at half a stripe it takes a whole one.
	RewriteLive int
	// RewriteEvery is how often all files are looked through for such stripes (1 h), and
	// how old they must be: what is younger may be about to be written over.
	RewriteEvery time.Duration
	// RewriteBytesPerSecond bounds what is read and written again of them, by all movers
	// together (32 MiB).
	RewriteBytesPerSecond int64
	// PackAfter is for how long nobody must have changed a small file for it to be packed with
	// others (24 h; negative: none is, and none where RewriteLive is negative).
	PackAfter time.Duration
	// BackupDir is where the leader keeps backups of the metadata that it takes by itself;
	// empty: it takes none. BackupEvery is how often (6 h), BackupKeep how many it keeps (4).
	BackupDir   string
	BackupEvery time.Duration
	// CheckEvery is how often the leader checks its whole state (24 h); negative: never.
	CheckEvery time.Duration
	BackupKeep int
	// BackupHorizon is for how long, in cluster time, the chunks of stripes are kept that no
	// file names any more, since a backup of the metadata may: a backup that is no older
	// restores whole. Devices that become full give them back earlier. (BackupEvery times
	// BackupKeep where the leader takes backups, else none; negative: none.)
	BackupHorizon time.Duration
	// SharesDisk says that the devices lie on the disk of the metadata, as on one machine.
	// While that disk is nearly full, devices give back what they keep for the horizon.
	SharesDisk bool
	// RunnerKeys is how many keys one piece of a job that the leader runs may
	// touch (512), and RunnerPieces how many pieces are run a second (200).
	RunnerKeys, RunnerPieces int

	// EntryCommands and EntryBytes bound the commands in one Raft entry (256,
	// 1 MiB). EntriesInFlight bounds the entries that are proposed at once (8),
	// QueuedCommands the commands that wait for a place in one (8,192): past that
	// callers wait at the door until their deadline.
	EntryCommands, EntryBytes       int
	EntriesInFlight, QueuedCommands int
}

// Peer is one metadata server, as clients reach it.
type Peer struct {
	ID           string
	Addresses    []string // host:port or unix:PATH
	AdminAddress string   // of metrics and health, for people
}

// Deps is what a test replaces.
type Deps struct {
	// NewStore makes the replicated store that applies its entries to fsm; it
	// must start nothing. Required.
	NewStore func(fsm FSM) (Store, error)
	// Dial returns another metadata server; nil where there is none to reach: then
	// a server enters unasked, and tells nobody of itself.
	Dial func(addrs []string) transport.Metadata
	// HeedRevoked, if not nil, gets the list of revoked certificates whenever it changes.
	HeedRevoked func(*transport.Revocations)
	FS          vfs.FS      // of backups; default: the machine's
	Clock       clock.Clock // default: the machine's
	Rand        io.Reader   // of keys; default: the machine's
	Secrets     Secrets     // default: in memory, as long as the server
	Log         *slog.Logger
	Metrics     *lead.Metrics // default: not registered anywhere
	// Expires is when the certificate of this server expires; nil: the servers have none.
	Expires func() time.Time
}

func (c *Config) setDefaults() {
	setDuration(&c.SessionTimeout, time.Minute)
	setInt(&c.MaxSessions, DefaultMaxSessions)
	setDuration(&c.Grace, time.Minute)
	setDuration(&c.Suspect, 3*time.Second)
	setDuration(&c.SettleTime, jobs.DefaultSettleMillis*time.Millisecond)
	setDuration(&c.RepairGrace, DefaultRepairGrace)
	setDuration(&c.TokenLife, 10*time.Minute)
	setDuration(&c.KeyLife, 24*time.Hour)
	setInt(&c.MinProtection, 1)
	setInt(&c.MaxRepairs, 16)
	setInt(&c.RepairsPerSecond, 256)
	setInt(&c.SlowTimes, 10)
	setInt(&c.RewriteLive, 25)
	setDuration(&c.RewriteEvery, time.Hour)
	setDuration(&c.PackAfter, 24*time.Hour)
	if c.RewriteBytesPerSecond == 0 {
		c.RewriteBytesPerSecond = 32 << 20
	}
	setDuration(&c.BackupEvery, 6*time.Hour)
	setDuration(&c.CheckEvery, 24*time.Hour)
	setInt(&c.BackupKeep, 4)
	if c.BackupDir != "" {
		setDuration(&c.BackupHorizon, min(c.BackupEvery*time.Duration(c.BackupKeep), maxHorizon))
	}
	c.BackupHorizon = max(c.BackupHorizon, 0)
	setInt(&c.RunnerKeys, 512)
	setInt(&c.RunnerPieces, 200)
	setInt(&c.EntryCommands, 256)
	setInt(&c.EntryBytes, 1<<20)
	setInt(&c.EntriesInFlight, 8)
	setInt(&c.QueuedCommands, 8192)
}

func setDuration(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

func setInt(n *int, def int) {
	if *n == 0 {
		*n = def
	}
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "metadata.New", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case c.Node == "":
		return bad("a node id is needed")
	case c.Cluster.IsZero():
		return bad("the cluster's identity is needed")
	case c.SettleTime < time.Second:
		return bad("a change of the bucket settles in %v: at least a second", c.SettleTime)
	case c.SlowTimes >= 0 && c.SlowTimes < 2:
		return bad("devices are drained that are %d times as slow as others: 2 at least, or -1 for none", c.SlowTimes)
	case c.RepairGrace < c.Suspect:
		return bad("the grace before a repair (%v) is shorter than the time to be suspect (%v)", c.RepairGrace, c.Suspect)
	case c.SessionTimeout < 2*lead.TickEvery:
		return bad("a session timeout of %v is too short: at least %v", c.SessionTimeout, 2*lead.TickEvery)
	case c.MaxSessions < 1:
		return bad("%d sessions of one certificate: at least 1", c.MaxSessions)
	case c.EntryCommands < 1 || c.EntriesInFlight < 1 || c.QueuedCommands < 1 || c.EntryBytes < 1:
		return bad("bounds of entries must be positive")
	case c.MinProtection < 1 || c.MinProtection >= moraine.MaxChunks:
		return bad("a least protection of %d: 1 to %d", c.MinProtection, moraine.MaxChunks-1)
	case c.RewriteLive > 90:
		return bad("stripes are rewritten of which up to %d%% are in use: 90 at most", c.RewriteLive)
	case c.RewriteEvery < time.Second || c.RewriteBytesPerSecond < 1<<16:
		return bad("stripes are looked through every %v and rewritten at %d bytes a second: at least a second, and 64 KiB", c.RewriteEvery, c.RewriteBytesPerSecond)
	case c.BackupHorizon > maxHorizon:
		return bad("what died is kept for backups for %v: a year at most", c.BackupHorizon)
	case c.BackupEvery < time.Second || c.BackupKeep < 1:
		return bad("a backup every %v, of which %d are kept: at least a second, and one", c.BackupEvery, c.BackupKeep)
	case c.MaxRepairs < 1 || c.RepairsPerSecond < 1 || c.RunnerKeys < 1 || c.RunnerPieces < 1:
		return bad("bounds of jobs must be positive")
	}
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.ID == "" || seen[p.ID] {
			return bad("peer %q is unnamed or named twice", p.ID)
		}
		seen[p.ID] = true
	}
	if len(c.Peers) > 0 && !seen[c.Node] {
		return bad("node %q is not among the peers", c.Node)
	}
	return nil
}

func (d *Deps) setDefaults() {
	if d.FS == nil {
		d.FS = vfs.OS{}
	}
	if d.Clock == nil {
		d.Clock = clock.System{}
	}
	if d.Secrets == nil {
		d.Secrets = &memorySecrets{}
	}
	if d.Rand == nil {
		d.Rand = rand.Reader
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Metrics == nil {
		d.Metrics = lead.NewMetrics(nil)
	}
}
