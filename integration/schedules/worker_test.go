package schedules_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// workerVariable, in the environment, makes a process a worker: this test's own
// binary, which carries out requests with a client of its own, line by line, and
// decides nothing. So it can be stopped and killed, and what was begun and what was
// acknowledged stays known.
const workerVariable = "MORAINE_TEST_SCHEDULE_WORKER"

// settings are those of a worker.
type settings struct {
	Certs    string
	Metadata []string
	Cached   bool
	Seed     uint64
}

// request is one operation to perform.
type request struct {
	ID      uint64
	Op      string
	Path    string `json:",omitempty"`
	Tag     uint64 `json:",omitempty"`
	Version uint32 `json:",omitempty"`
	Off, N  int64  `json:",omitempty"`
	Scheme  moraine.Scheme
	Level   moraine.Level `json:",omitempty"` // the level of the acknowledgement; 0: nvme
	Attempt uint32        `json:",omitempty"`
	Step    uint64        `json:",omitempty"`
	Patient time.Duration // how long it may take
}

// The operations.
const (
	opPut     = "put"     // Path whole, of N bytes
	opPatch   = "patch"   // N bytes at Off of Path, in place, by a handle that stays open
	opRemove  = "remove"  // Path
	opRead    = "read"    // N bytes at Off of Path, as far as it goes
	opOpenRun = "openrun" // the run at Path, as its next attempt, and the step to continue from
	opSave    = "save"    // Step of the run, by all ranks
	opEvict   = "evict"   // Path: to the bucket, and its stripes are dropped
	opStage   = "stage"   // Path: back to stripes
	opRestore = "restore" // the latest step of the run at Path
	opStep    = "step"    // the files of Attempt and Step of the run at Path
)

// reply is the result.
type reply struct {
	ID       uint64
	Error    string `json:",omitempty"`
	Wrong    string `json:",omitempty"` // bytes that were read and belong to no version
	Missing  bool   `json:",omitempty"`
	Size     int64  `json:",omitempty"`
	Versions []uint32
	Attempt  uint32 `json:",omitempty"`
	Step     uint64 `json:",omitempty"`
}

// worker is the process.
type worker struct {
	settings
	c *client.Client

	mu      sync.Mutex
	out     *json.Encoder
	handles map[string]*client.Handle
	runs    []*ckpt.Run // by rank
}

// runWorker is the whole life of a worker: it ends with its input.
func runWorker(spec string) error {
	w := &worker{out: json.NewEncoder(os.Stdout), handles: map[string]*client.Handle{}}
	if err := json.Unmarshal([]byte(spec), &w.settings); err != nil {
		return err
	}
	if err := w.dial(); err != nil {
		return err
	}
	w.say(reply{}) // it has started
	sc := bufio.NewScanner(os.Stdin)
	for sc.Scan() {
		var r request
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			return err
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), r.Patient)
			defer cancel()
			a, err := w.do(ctx, r)
			var wrong wrongBytes
			switch {
			case errors.As(err, &wrong):
				a.Wrong = wrong.Error()
			case err != nil:
				a.Error = err.Error()
			}
			a.ID = r.ID
			w.say(a)
		}()
	}
	return sc.Err()
}

// dial opens the client as soon as a server answers.
func (w *worker) dial() error {
	id, err := pki.LoadIdentity(pki.FilesIn(w.Certs, "client"))
	if err != nil {
		return err
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.CRC}, transport.PoolDeps{Identity: id})
	if err != nil {
		return err
	}
	cfg := client.Config{MemoryBytes: 64 << 20, Patience: 20 * time.Second, ChunkBytes: 256 << 10, CacheEntries: -1}
	if w.Cached {
		cfg.CacheEntries = 0
	}
	for _, m := range w.Metadata {
		cfg.Metadata = append(cfg.Metadata, []string{m})
	}
	for end := time.Now().Add(2 * time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		w.c, err = client.Dial(ctx, cfg, client.Deps{Dialer: pool})
		cancel()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (w *worker) say(a reply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(a) // the caller has ended, and so will we
}

func (w *worker) do(ctx context.Context, r request) (reply, error) {
	switch r.Op {
	case opPut:
		return w.put(ctx, r)
	case opPatch:
		return reply{}, w.patch(ctx, r)
	case opRemove:
		return reply{}, w.c.Remove(ctx, r.Path)
	case opRead:
		return w.read(ctx, r)
	case opEvict:
		return w.move(ctx, r, client.JobFlush, client.JobEvict)
	case opStage:
		return w.move(ctx, r, client.JobStage)
	case opOpenRun:
		return w.openRun(ctx, r)
	case opSave:
		return reply{}, w.save(ctx, r)
	case opRestore:
		return w.restore(ctx, r)
	case opStep:
		return w.stepFiles(ctx, r)
	}
	return reply{}, fmt.Errorf("no such thing to do: %q", r.Op)
}

// put writes a whole file; Size says whether it was acknowledged from memory only.
func (w *worker) put(ctx context.Context, r request) (a reply, err error) {
	f, err := w.c.Create(ctx, r.Path, client.CreateOptions{Replace: true, Scheme: r.Scheme, Level: r.Level})
	if err != nil {
		return a, err
	}
	piece := make([]byte, 256<<10)
	for off := int64(0); off < r.N; off += int64(len(piece)) {
		p := piece[:min(int64(len(piece)), r.N-off)]
		fill(p, r.Tag, r.Version, off/blockBytes)
		if _, err := f.Write(p); err != nil {
			f.Abort()
			return a, err
		}
	}
	done, err := f.Commit(ctx)
	if err != nil {
		f.Abort()
		return a, err
	}
	if done.Attr.Level() == moraine.Memory {
		a.Size = 1
	}
	return a, nil
}

func (w *worker) patch(ctx context.Context, r request) error {
	h, err := w.handle(ctx, r.Path, r.Level)
	if err != nil {
		return err
	}
	p := make([]byte, r.N)
	fill(p, r.Tag, r.Version, r.Off/blockBytes)
	for at := int64(0); at < r.N && err == nil; at += 3 * blockBytes { // in several writes
		_, err = h.WriteAt(ctx, p[at:min(r.N, at+3*blockBytes)], r.Off+at)
	}
	if err == nil {
		err = h.Flush(ctx)
	}
	if err != nil {
		w.mu.Lock()
		delete(w.handles, r.Path)
		w.mu.Unlock()
		return errors.Join(err, h.Close(ctx))
	}
	return nil
}

// handle opens a file for writing in place, or returns the open handle.
func (w *worker) handle(ctx context.Context, path string, level moraine.Level) (*client.Handle, error) {
	w.mu.Lock()
	h := w.handles[path]
	w.mu.Unlock()
	if h != nil {
		return h, nil
	}
	attr, err := w.c.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	if h, err = w.c.Inodes().OpenHandle(ctx, attr.Inode(), client.HandleOptions{Level: level}); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.handles[path] = h
	w.mu.Unlock()
	return h, nil
}

// move runs jobs on a file, one after the other; Size says whether it is only in
// the bucket then.
func (w *worker) move(ctx context.Context, r request, kinds ...client.JobKind) (a reply, err error) {
	attr, err := w.c.Stat(ctx, r.Path)
	if err != nil {
		return a, err
	}
	for _, kind := range kinds {
		jobs, err := w.c.Jobs().Queue(ctx, kind, attr.Inode())
		if err != nil {
			return a, err
		}
		j, err := w.c.Jobs().Wait(ctx, jobs[0].ID, nil)
		if err != nil {
			return a, err
		}
		if j.Error != "" {
			return a, errors.New(j.Error)
		}
	}
	if attr, err = w.c.Inodes().Stat(ctx, attr.Inode()); err == nil && attr.Evicted() {
		a.Size = 1
	}
	return a, err
}

// wrongBytes are bytes that were served and belong to no version.
type wrongBytes struct{ error }

func (w *worker) read(ctx context.Context, r request) (reply, error) {
	f, err := w.c.OpenFile(ctx, r.Path)
	if errors.Is(err, moraine.NotFound) {
		return reply{Missing: true}, nil
	}
	if err != nil {
		return reply{}, err
	}
	defer f.Close()
	a := reply{Size: f.Size()}
	p := make([]byte, max(0, min(r.N, f.Size()-r.Off)))
	if err := f.ReadRange(ctx, p, r.Off); err != nil && len(p) > 0 {
		return reply{}, err
	}
	if a.Versions, err = versionsOf(p, r.Tag, r.Off/blockBytes); err != nil {
		return a, wrongBytes{fmt.Errorf("%s of %d bytes: %w", r.Path, a.Size, err)}
	}
	return a, nil
}
