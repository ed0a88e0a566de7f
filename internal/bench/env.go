package bench

import (
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
)

// Env is the environment of a benchmark.
type Env struct {
	// Cluster is the cluster of processes on this machine. It is nil if the target
	// is another cluster or a path. CPU then counts only the benchmark's own
	// processes, and syncs and commands are unknown (0).
	Cluster *devcluster.Cluster
	// Dir is on the file system of the cluster's devices; the limits are measured
	// in it.
	Dir string
	// Worker is the command line of a worker process; --work is appended.
	Worker []string
	// RaftNode is the command line of a node of bare Raft; its flags are appended.
	// It is nil if the target is not one of our clusters.
	RaftNode []string
	// Agent is the command line of a training node's agent in Cluster; its flags are appended.
	// Ckpt needs it.
	Agent []string
	// Repeat is how many saves in a row Ckpt measures, in place of its other lines; 0: none.
	Repeat int
	// Python is the interpreter of Torch's ranks, and Rounds how many saves and restores of each way
	// a figure is the median of.
	Python string
	Rounds int
	// Ranks and Tensors are those of CkptSize: each of so many ranks saves a row of each tensor.
	Ranks   uint32
	Tensors int
	// Open opens the target for the benchmark itself.
	Open func(ctx context.Context) (Target, error)
	// Bytes is how much a run moves (at least 4 GiB for a record). Devices is how
	// many files the disk's limit is measured with, Clients how many processes work
	// concurrently, and Seconds how long small operations run.
	Bytes            int64
	Devices, Clients int
	Seconds          float64
	// MemoryBytes is the memory for chunks of each chunkserver of Cluster, if that
	// suffices for the benchmarks of the memory tier (MemoryFor); otherwise 0.
	MemoryBytes int64
	// ShortCircuit says that the chunkservers of Cluster have unix sockets for
	// callers on this machine: loopback is then measured over one too.
	ShortCircuit bool
	// WorkingSet limits how many bytes a longer write keeps on the devices, with
	// parity: it then overwrites files in turn. 0: no limit.
	WorkingSet int64
	// How is how Failover stops leaders: kill, stop, vanish. Nil: kill.
	How []string
	// Inodes is how many inodes Load makes in State. Of ContentEvery files in a row,
	// one has content.
	Inodes, ContentEvery uint64
	// Large is how many files one further directory gets.
	Large uint64
	State string
	// Mode is the transport mode of the cluster. MetadataArgs are the arguments
	// with which Scale and Followers start their metadata servers. Down is how long
	// Followers stops one, and Rate how many files per second it has made
	// meanwhile.
	MetadataArgs []string
	Mode         string
	Down         time.Duration
	Rate         float64
	// On returns an Env for a cluster that the benchmark started itself.
	On func(c *devcluster.Cluster) *Env
	// Scheme is the scheme of the files of Rebuild. NoForeground leaves out the
	// concurrent reads and writes.
	Scheme       moraine.Scheme
	NoForeground bool
	// Sessions is how many sessions Leases opens, Leases how many leases each of
	// them holds.
	Sessions, Leases int
	// Mount mounts the target on a directory. It is nil if the target is a path.
	Mount func(ctx context.Context) (Mounted, error)
	// Connect opens a session with the cluster; nil if the target is a path.
	Connect func(ctx context.Context) (c *client.Client, end func() error, err error)
	// ConnectCached is Connect with a cache of names under leases, as a mount has.
	ConnectCached func(ctx context.Context) (c *client.Client, end func() error, err error)
	// S3 is the S3 endpoint of the target, and Bucket the bucket of its object
	// tier; nil if they are unknown.
	S3     *S3Server
	Bucket *Bucket
	// Prefix comes before the names of lines ("s3-"), Suffix after them
	// ("-secure").
	Prefix, Suffix string
	// Progress reports what is running; never nil.
	Progress func(format string, args ...any)

	written bool // there are files to read
}

func (e *Env) name(name string) string { return e.Prefix + name + e.Suffix }

// mkdir makes a directory on the target.
func (e *Env) mkdir(ctx context.Context, dir string) error {
	t, err := e.Open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(t.Mkdir(ctx, dir), t.Close())
}

// usage is the cost of measured work.
type usage struct {
	wall        time.Duration
	cpu         float64 // seconds, of every process involved
	read, wrote uint64  // bytes of the device
	syncs       uint64
	rss, rssEnd float64 // resident bytes of the largest chunkserver, before and after
	commands    float64 // metadata commands applied (on the leader)
}

// measure runs work and returns its cost.
func (e *Env) measure(ctx context.Context, work func(context.Context) error) (usage, error) {
	syncs, commands := e.servers().counters(ctx)
	r0, w0, _ := diskBytes(e.Dir)
	rss := e.servers().mostResident()
	cpu := cpuByProcess()
	start := time.Now()
	err := work(ctx)
	u := usage{wall: time.Since(start), rss: rss}
	for pid, used := range cpuByProcess() {
		u.cpu += used - cpu[pid] // a process that started meanwhile had used nothing
	}
	r1, w1, _ := diskBytes(e.Dir)
	u.read, u.wrote, u.rssEnd = r1-r0, w1-w0, e.servers().mostResident()
	syncs1, commands1 := e.servers().counters(ctx)
	u.syncs, u.commands = uint64(max(0, syncs1-syncs)), max(0, commands1-commands)
	return u, err
}
