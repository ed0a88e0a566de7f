// Package fuse shows a cluster as a mounted file system. It adapts the kernel's
// FUSE requests to package client, and the client's errors to errnos. It decides
// nothing: the client and the metadata service define what a call means.
//
// It caches nothing uncertain. Each call sees everything acknowledged anywhere before
// it began. The client answers from its cache where it holds a cache lease. Where it
// holds one it also lends names and attributes to the kernel, for a fraction of a
// second (names.go), and lets nobody change what is lent until the kernel has forgotten
// it. Under such a lease the kernel also keeps the pages of files that are only read
// (pages.go). It drops them before the client acknowledges a change. All other files
// are opened with direct I/O: read returns exactly the bytes that the client returned,
// and ends where the file ends. Where these are mapped, each mmap begins without pages.
//
// One path through it: an application's write becomes a request of up to 1 MiB
// (file.go). The mount copies it into the file's client.Handle, which makes
// stripes of successive writes. fsync and close are requests too, and return
// when the handle has committed, with the first error since the last report. A
// read takes memory for its answer, which readReply.Done returns after the
// kernel has the bytes (file.go). The number of a FUSE node is the inode's
// number, so there is no table of nodes: the mount remembers only the open
// files (table.go).
package fuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/idmap"
	"github.com/morainefs/moraine/fuse/observe"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/internal/rawclient"
)

// Config has the settings of an operator.
type Config struct {
	// Dir is the empty directory to mount on.
	Dir string
	// Root is the directory of the cluster to mount; 0: the client's root.
	Root moraine.InodeID
	// Name is what the list of mounts shows as the source.
	Name string
	// AllowOther admits other users than the one who mounts. In either case mode,
	// owner and group decide permissions.
	AllowOther bool
	// ReadOnly mounts read-only.
	ReadOnly bool
	// NoAtime records no reads: the atime stays what programs set. Otherwise a read raises it as relatime says.
	// A ReadOnly mount records none either.
	NoAtime bool
	// AtimeDelay is how long the mount collects reads before it sends them. Default 30 s.
	AtimeDelay time.Duration
	// NoXattrs mounts without extended attributes. The kernel then does not request them, which
	// programs like ls do for each file. Access control lists are attributes too: such a mount
	// neither shows nor sets them, and decides by mode, owner and group alone.
	NoXattrs bool
	// IDs maps the users and groups of the cluster to those of the node, one to one.
	IDs idmap.Map
	// Prefetch names the files that the mount reads whole when programs open them.
	Prefetch Prefetch
	// Level is what close waits for, moraine.NVMe, Memory or Local; 0: the level of the
	// client's commits. See client.HandleOptions.Level for Local. fsync waits for nvme, and so does a write to a file opened
	// with O_SYNC or O_DSYNC.
	Level moraine.Level
	// RequestBytes limits the requests taken from the kernel and not yet answered,
	// ReadBytes the answers to reads. Default 64 MiB each. Only they and the
	// client's own memory grow with the load.
	RequestBytes, ReadBytes int64
	// Patience limits how long a read waits for memory for its answer; then it
	// fails with ETIMEDOUT. Default 2 min.
	Patience time.Duration
	// CallPatience limits how long a call takes in all; then it fails with
	// ETIMEDOUT. Default 5 min.
	CallPatience time.Duration
	// EndPatience is how long an unmount waits for open files to be closed before
	// it disconnects them. Default 10 s.
	EndPatience time.Duration
}

// Deps are the dependencies of the mount.
type Deps struct {
	// Client belongs to the caller, which closes it after Run has returned.
	Client *client.Client
	Log    *slog.Logger
	// Metrics counts for the mount. Default: without a registry.
	Metrics *Metrics
	// AccessLog gets a line for each request of the kernel; nil: there is none.
	AccessLog *observe.AccessLog
	// Device is the kernel's side of a mount that another process made; nil: Run mounts.
	Device *Device
	// Now is the clock of the times of reads. Default: time.Now.
	Now func() time.Time
}

const (
	// maxRequest is the most bytes of one read or write.
	maxRequest = 1 << 20
	// defaultReadBytes is the default of Config.ReadBytes.
	defaultReadBytes = 64 << 20
	// fsType is what the list of mounts shows as the type, after "fuse.".
	fsType = "moraine"
)

func (c *Config) setDefaults() {
	c.RequestBytes = cmp.Or(c.RequestBytes, 64<<20)
	c.ReadBytes = cmp.Or(c.ReadBytes, defaultReadBytes)
	c.Name = cmp.Or(c.Name, fsType)
	c.Patience = cmp.Or(c.Patience, 2*time.Minute)
	c.CallPatience = cmp.Or(c.CallPatience, 5*time.Minute)
	c.AtimeDelay = cmp.Or(c.AtimeDelay, 30*time.Second)
	c.EndPatience = cmp.Or(c.EndPatience, 10*time.Second)
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "":
		return &moraine.Error{Op: "fuse.New", Kind: moraine.InvalidArgument, Err: errors.New("no directory to mount on: set Dir")}
	case c.Level > moraine.NVMe:
		return &moraine.Error{Op: "fuse.New", Kind: moraine.InvalidArgument, Err: fmt.Errorf("invalid level %s for close: use nvme, memory or local", c.Level)}
	case c.RequestBytes < 2*maxRequest || c.ReadBytes < maxRequest:
		return &moraine.Error{Op: "fuse.New", Kind: moraine.InvalidArgument, Err: fmt.Errorf("too little memory for requests of %d bytes", maxRequest)}
	}
	return c.Prefetch.validate()
}

// Mount is one mounted file system, from New to the end of Run.
type Mount struct {
	cfg      Config
	device   *Device // nil: none
	fs       *fileSystem
	observer *observe.Observer
}

// New checks the settings. It mounts nothing.
func New(cfg Config, deps Deps) (*Mount, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	deps.Log = cmp.Or(deps.Log, slog.New(slog.DiscardHandler))
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	reports := limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)
	c := &calls{client: deps.Client, raw: rawclient.Of(deps.Client), log: deps.Log, root: cfg.Root, ids: cfg.IDs, patience: cfg.CallPatience}
	if c.root == 0 {
		c.root = deps.Client.Root()
	}
	c.undisturbed.Store(int64(undisturbed))
	if !cfg.NoAtime && !cfg.ReadOnly {
		c.atimes = newAtimes(c.raw, cfg.AtimeDelay, deps.Now, deps.Metrics.AtimesDropped)
	}
	files := &openFiles{calls: c, level: cfg.Level, reads: limit.NewSemaphore(cfg.ReadBytes, limit.Resource{
		Name: "memory of read replies", Patience: cfg.Patience, Advice: "raise --memory, or read from fewer programs at once", Reports: reports})}
	files.pages = newPages(c.raw, files.files.isWritten, c.node, deps.Metrics.Reads)
	files.prefetches = newPrefetches(cfg.Prefetch, files, deps.Metrics.Prefetched)
	files.files.init(limit.Resource{Name: "turn to open or remove a file", Patience: cfg.Patience,
		Advice: "look for metadata servers that do not answer", Reports: reports})
	dirs := &directories{calls: c, opened: files}
	dirs.dirs.init()
	if d := deps.Device; d != nil {
		files.files.state, files.pages.state = d.state, d.state
		dirs.dirs.next = d.life * fhsPerLife
		deps.Metrics.restarts.Add(float64(d.Restarts()))
	}
	return &Mount{cfg: cfg, device: deps.Device, observer: observe.New(deps.Metrics.operations, deps.AccessLog), fs: &fileSystem{calls: c, openFiles: files, directories: dirs,
		unimplemented: unimplemented{gofuse.NewDefaultRawFileSystem()}}}, nil
}

// Observer has counted the requests of the kernel.
func (m *Mount) Observer() *observe.Observer { return m.observer }

// OpenFiles returns how many files are open.
func (m *Mount) OpenFiles() int { return m.fs.files.count() }

// Run mounts, calls ready once the file system can be used, and serves until it is
// unmounted or ctx ends. Before it returns it commits everything written; an error
// names what it could not. When ctx ends it detaches the file system from the
// directory tree at once. Open files can be used and closed until
// Config.EndPatience has passed. After that they get ENOTCONN, which is an error of
// Run too.
func (m *Mount) Run(ctx context.Context, ready func()) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unlocking, stopUnlocking := context.WithCancel(life)
	defer stopUnlocking()
	m.fs.unlocking = unlocking
	m.fs.loans = m.fs.client.Inodes().Loans(m.fs.forget)
	defer m.fs.loans.End()
	m.fs.life, m.fs.calling = life, m.fs.loans.Context(life)
	server, err := m.mount()
	if err != nil {
		return err
	}
	if m.device != nil {
		if err := restore(life, m.fs.openFiles, m.device); err != nil {
			return err
		}
		m.fs.background.Go(func() { m.fs.files.cleanEach(unlocking) })
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve()
	}()
	reads, endReads := context.WithCancel(life)
	defer endReads()
	m.fs.pages.late.Go(func() { m.fs.atimes.run(reads) })
	if err := server.WaitMount(); err != nil {
		return errors.Join(m.end(server, served), &moraine.Error{Op: "mount", Ref: m.cfg.Dir, Kind: moraine.IOError, Err: err})
	}
	raiseReadahead(m.cfg.Dir, m.fs.log)
	if ready != nil {
		ready()
	}
	select {
	case <-served: // a user unmounted it
		err = nil
	case <-ctx.Done():
		err = m.end(server, served)
		m.fs.pages.end() // of files that are still open
	}
	stopUnlocking()
	m.fs.background.Wait()
	open := m.fs.files.all()
	err = errors.Join(err, m.fs.files.closeAll(m.fs.life))
	for _, f := range open {
		m.fs.unlockHandle(f)
	}
	endReads()
	stop() // reads may still run, and late work waits for them
	m.fs.pages.late.end()
	return err
}

// mount attaches the file system and answers the kernel's first request.
func (m *Mount) mount() (*gofuse.Server, error) {
	var server *gofuse.Server
	var err error
	if m.device != nil {
		server, err = m.connect(observe.Wrap(resent{m.fs}, m.observer))
	} else if server, err = gofuse.NewServer(observe.Wrap(m.fs, m.observer), m.cfg.Dir, m.cfg.options(m.fs.log)); err != nil {
		err = &moraine.Error{Op: "mount", Ref: m.cfg.Dir, Kind: moraine.IOError, Err: err}
	}
	if err != nil {
		return nil, err
	}
	m.fs.server.Store(server)
	m.fs.pages.begin(server)
	m.fs.prefetches.store = server.InodeNotifyStoreCache
	closeOnExec(m.fs.log)
	return server, nil
}

// options are those of the library.
func (c *Config) options(log *slog.Logger) *gofuse.MountOptions {
	opts := &gofuse.MountOptions{
		FsName: c.Name, Name: fsType, AllowOther: c.AllowOther,
		Options:  []string{"default_permissions"},
		MaxWrite: maxRequest, MaxReadAhead: maxRequest, MaxBackground: maxBackground,
		MaxInflightRequestBytes: int(c.RequestBytes),
		// A splice of a full request needs a pipe larger than the usual limit, and
		// logs a line for each failure; writev needs none.
		DisableSplice: true,
		// Without KILLPRIV the kernel requests security.capability before each write.
		// DONT_MASK leaves the umask to the service: it holds unless the directory has a
		// default access control list.
		ExtraCapabilities: gofuse.CAP_HANDLE_KILLPRIV_V2 | gofuse.CAP_DIRECT_IO_ALLOW_MMAP | gofuse.CAP_DONT_MASK,
		EnableAcl:         !c.NoXattrs,
		DisableXAttrs:     c.NoXattrs,
		EnableLocks:       true,
		DirectMount:       true,
		Logger:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if c.ReadOnly {
		opts.Options = append(opts.Options, "ro")
		opts.DirectMountFlags = readOnlyFlags
	}
	return opts
}

// maxBackground is how many read-ahead requests the kernel sends
// on its own.
const maxBackground = 64
