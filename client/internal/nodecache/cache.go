// Package nodecache keeps file bytes that the programs of a node have read in a directory of a
// local disk, so that the next read needs no server. Several processes of the node may share
// the directory, and it survives their restarts.
//
// It caches contents, not files. A Content names one generation of an inode, whose bytes never
// change. So nothing in the cache becomes stale, and no process has to hear of a change: a
// reader that sees another generation asks for another Content. Two processes that store the
// same block write the same bytes, so they need no lock.
//
// One path through it: Cache.Read looks for the cache files of a range (file.go) and verifies
// each block. If one is missing the caller fetches the range from the cluster, and Cache.Add
// queues a copy of it for the goroutine that writes (writer.go). One process at a time, the
// keeper, counts what the directory holds and removes what is least useful (keeper.go), in the
// order that S3-FIFO gives (fifo.go).
//
// Nothing is synced. After a power cut a block is whole or fails its checksum, and then it is
// fetched again.
package nodecache

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/simplelru"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
)

// Config says where the cache is. The zero values mean the defaults.
type Config struct {
	// Dir is a directory of its own on a local disk.
	Dir string
	// Bytes bounds what the directory takes, as the file system counts it. All processes that
	// share Dir name the same bound. It may be exceeded by a sixteenth for each process.
	Bytes int64
	// QueueBytes bounds the copies that wait to be written. Beyond it additions are dropped.
	// Default 64 MiB.
	QueueBytes int64
}

// Deps are what tests replace.
type Deps struct {
	FS      vfs.FS
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *metrics.Metrics
}

// MinBytes is the least Config.Bytes: some cache files for each process.
const MinBytes = 64 << 20

const (
	// openFiles bounds the cache files that a process keeps open, of which each has up to 8 KiB
	// of checksums in memory.
	openFiles = 1024
	// errorPause is how long after an error of the disk the process leaves the cache alone.
	errorPause = time.Minute
)

// Cache is a process's access to the directory. Its methods may be called concurrently. A nil
// Cache has nothing and takes nothing.
type Cache struct {
	cfg     Config
	fs      vfs.FS
	clock   clock.Clock
	log     *slog.Logger
	metrics *metrics.Metrics

	mu   sync.Mutex
	open *simplelru.LRU // *cacheFile by id

	queued    atomic.Int64 // bytes in the queue
	queue     chan addition
	budget    budget
	resumes   atomic.Int64 // wall time in nanoseconds at which the cache is used again after an error
	stop      context.CancelFunc
	running   sync.WaitGroup
	closeOnce sync.Once
}

// Open makes the directory where it is missing, and starts the goroutines of the cache. They end
// at Close. It fails with InvalidArgument if the directory has files of something else.
func Open(cfg Config, deps Deps) (*Cache, error) {
	cfg.QueueBytes = cmp.Or(cfg.QueueBytes, 64<<20)
	if cfg.Bytes < MinBytes {
		return nil, invalid(cfg.Dir, "%d bytes are too few for a cache: at least %d", cfg.Bytes, int64(MinBytes))
	}
	if err := prepare(deps.FS, cfg.Dir); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	c := &Cache{cfg: cfg, fs: deps.FS, clock: deps.Clock, log: deps.Log, metrics: deps.Metrics, stop: stop,
		queue: make(chan addition, queueLength)}
	c.open, _ = simplelru.NewLRU(openFiles, func(_, f any) { f.(*cacheFile).close() }) // fails only for a size of 0
	c.budget.init(cfg.Bytes / 16)
	c.running.Go(func() { c.write(life) })
	c.running.Go(func() { newKeeper(c).run(life) })
	return c, nil
}

// lockName is the file that the keeper locks. It also marks the directory as a cache.
const lockName = "lock"

// prepare makes the directories of a cache, unless dir has other files.
func prepare(fs vfs.FS, dir string) error {
	if err := fs.MkdirAll(dir); err != nil {
		return unusable(dir, err)
	}
	names, err := fs.List(dir)
	if err != nil {
		return unusable(dir, err)
	}
	for _, name := range names {
		if !isShard(name) && name != lockName && name != countName {
			return invalid(dir, "it has other files (%s): name an empty directory for the cache", name)
		}
	}
	for shard := range 256 {
		if err := fs.MkdirAll(path.Join(dir, hex.EncodeToString([]byte{byte(shard)}))); err != nil {
			return unusable(dir, err)
		}
	}
	return nil
}

// isShard reports whether a name is that of a directory of cache files.
func isShard(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == 1
}

func invalid(dir, format string, args ...any) error {
	return &moraine.Error{Op: "node cache", Ref: dir, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

func unusable(dir string, err error) error {
	return &moraine.Error{Op: "node cache", Ref: dir, Kind: moraine.IOError, Err: err}
}

// Close writes nothing more, and returns when all goroutines have ended and all files are
// closed. No other call may run at the same time or follow.
func (c *Cache) Close() {
	if c == nil {
		return
	}
	c.closeOnce.Do(func() {
		c.stop()
		c.running.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open.Purge()
	})
}

// Read fills dst with the bytes of a content from off on, and reports whether the cache had all
// of them. The range lies within the content. If it returns false, dst is undefined. It makes
// no request and may read the disk.
func (c *Cache) Read(content Content, dst []byte, off int64) bool {
	if c == nil || len(dst) == 0 || c.paused() {
		return false
	}
	if !c.read(content, dst, off) {
		c.metrics.NodeCacheMissBytes.Add(float64(len(dst)))
		return false
	}
	c.metrics.NodeCacheHitBytes.Add(float64(len(dst)))
	return true
}

func (c *Cache) read(content Content, dst []byte, off int64) bool {
	for len(dst) > 0 {
		part := content.part(off)
		n := min(int64(len(dst)), part.end()-off)
		err := c.readPart(part, dst[:n], off-part.begin())
		if errors.Is(err, errRemoved) { // there may be another one by now
			err = c.readPart(part, dst[:n], off-part.begin())
		}
		if err != nil {
			return false
		}
		dst, off = dst[n:], off+n
	}
	return true
}

// errMissing is the error of bytes that the cache does not have.
var errMissing = errors.New("not in the cache")

// readPart fills dst from one cache file.
func (c *Cache) readPart(part Part, dst []byte, off int64) error {
	f, err := c.file(part, false)
	if err == nil {
		err = f.read(dst, off)
	}
	if err != nil {
		c.failed("read", part, f, err)
		return err
	}
	f.use(c.clock.Now())
	return nil
}

// failed handles an error of a cache file. A damaged file, or one that is removed, is not used
// again. After an error of the disk the process leaves the cache alone for a time.
func (c *Cache) failed(op string, part Part, f *cacheFile, err error) {
	if errors.Is(err, errMissing) {
		return
	}
	if f != nil {
		c.forget(part.id(), f)
	}
	switch {
	case errors.Is(err, errRemoved):
	case errors.Is(err, errDamaged):
		c.metrics.NodeCacheErrors.WithLabelValues("damaged").Inc()
		c.log.Warn("a file of the node's cache is damaged; the cache drops it", "path", c.path(part.id()), "err", err)
		_ = c.remove(part.id())
	default:
		c.metrics.NodeCacheErrors.WithLabelValues(op).Inc()
		c.log.Warn("the node's cache is not used for a minute, since its disk failed", "op", op, "path", c.path(part.id()), "err", err)
		c.resumes.Store(c.clock.Now().Add(errorPause).UnixNano())
	}
}

// remove removes a cache file, and then cuts it, so that the processes that have it open see
// that it is removed and keep no space.
func (c *Cache) remove(id ID) error {
	name := c.path(id)
	f, err := c.fs.Open(name, vfs.Write)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	if err := c.fs.Remove(name); err != nil {
		return ignoreMissing(err)
	}
	return f.Truncate(0)
}

func (c *Cache) paused() bool {
	at := c.resumes.Load()
	return at != 0 && c.clock.Now().UnixNano() < at
}

// path returns the path of a cache file.
func (c *Cache) path(id ID) string {
	name := hex.EncodeToString(id[:])
	return path.Join(c.cfg.Dir, name[:2], name)
}

// file returns the open cache file of a part. With create it makes the file where it is missing.
func (c *Cache) file(part Part, create bool) (*cacheFile, error) {
	id := part.id()
	c.mu.Lock()
	f, ok := c.open.Get(id)
	c.mu.Unlock()
	if ok {
		return f.(*cacheFile), nil
	}
	fresh, err := openCacheFile(c.fs, c.path(id), part, create)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.open.Get(id); ok { // another call opened it meanwhile
		fresh.close()
		return f.(*cacheFile), nil
	}
	c.open.Add(id, fresh)
	return fresh, nil
}

// forget closes f, if it is the open file of id.
func (c *Cache) forget(id ID, f *cacheFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if open, ok := c.open.Peek(id); ok && open.(*cacheFile) == f {
		c.open.Remove(id) // and close it
	}
}
