package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// Op is what a worker does.
type Op string

const (
	// OpWrite writes one file sequentially, and makes it durable.
	OpWrite Op = "write"
	// OpRead reads one file sequentially.
	OpRead Op = "read"
	// OpCreate creates empty files, each client in a directory of its own.
	OpCreate Op = "create"
	// OpStat stats files that OpCreate made, at random.
	OpStat Op = "stat"
	// OpStatLoaded requests the attributes of a file of the load by its path,
	// chosen at random; each is a request.
	OpStatLoaded Op = "stat-loaded"
	// OpReadDir lists the client's directory.
	OpReadDir Op = "readdir"
	// OpRename renames the files in turn.
	OpRename Op = "rename"
	// OpUnlink removes the files, until none is left.
	OpUnlink Op = "unlink"
	// OpCommit appends the record of a small write's stripe to a file of the
	// client. It is only the metadata part of a write: no chunk is put.
	OpCommit Op = "commit"
	// OpSmallFile creates a file, writes one block and closes it, as a program on a
	// mount does.
	OpSmallFile Op = "small-file"
	// OpWriteMemory is OpWrite to level memory.
	OpWriteMemory Op = "write-memory"
	// OpRandom reads blocks of one file at random, many concurrently.
	OpRandom Op = "random"
	// OpVerify reads one file and compares it with the written bytes.
	OpVerify Op = "verify"
	// OpLoopback moves bytes to or from a server without storage.
	OpLoopback Op = "loopback"
)

// Work is the task of one worker process.
type Work struct {
	Op Op `json:"op"`
	// Path is the file to write or read, or the directory to work in.
	Path  string `json:"path"`
	Bytes int64  `json:"bytes,omitempty"`
	// WorkingSet limits how many bytes OpWrite keeps on the devices, with parity,
	// of everything in the cluster; 0: no limit, and Path is one file.
	WorkingSet int64 `json:"working_set,omitempty"`
	// Writers is how many write concurrently, within that limit.
	Writers int `json:"writers,omitempty"`
	// Clients work concurrently, each with a session of its own, for Seconds.
	Clients int     `json:"clients,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	// Files is how many files each client has in its directory, and Renames how
	// often they were renamed before.
	Files   []int `json:"files,omitempty"`
	Renames []int `json:"renames,omitempty"`
	// Loaded is the number of files of a load.
	Loaded uint64 `json:"loaded,omitempty"`
	// Block is the length of a random read, InFlight how many run concurrently.
	Block    int       `json:"block,omitempty"`
	InFlight int       `json:"in_flight,omitempty"`
	Loopback *Loopback `json:"loopback,omitempty"`
}

// Result is the result of a worker.
type Result struct {
	Bytes   int64   `json:"bytes"`
	Ops     int64   `json:"ops"`
	Seconds float64 `json:"seconds"`
	// Each is how many operations each client did.
	Each  []int  `json:"each,omitempty"`
	Error string `json:"error,omitempty"`
	ReadHelp
}

// ReadHelp is how often reads needed more than the chunks they requested.
type ReadHelp struct {
	Rebuilt   uint64 `json:"rebuilt,omitempty"`    // stripes rebuilt from parity
	Hedged    uint64 `json:"hedged,omitempty"`     // late chunks for which others were requested
	HedgesWon uint64 `json:"hedges_won,omitempty"` // stripes whose other chunks came first
}

func (h *ReadHelp) add(o ReadHelp) {
	h.Rebuilt += o.Rebuilt
	h.Hedged += o.Hedged
	h.HedgesWon += o.HedgesWon
}

// Target is where a worker works: a cluster, or a mounted file system.
type Target interface {
	// Write makes a durable file of total bytes from source, repeated.
	Write(ctx context.Context, name string, total int64, source []byte) error
	// Read reads a whole file through buf and returns its size.
	Read(ctx context.Context, name string, buf []byte) (int64, error)
	// Mkdir makes a directory and its parents.
	Mkdir(ctx context.Context, name string) error
	// Small does one small operation on a file, or the directory; to is the new
	// name of a rename.
	Small(ctx context.Context, op Op, name, to string) error
	// Help returns the help of all reads so far; the targets of a process may share
	// the count.
	Help() ReadHelp
	Close() error
}

// RunWorker does one Work. It opens its sessions, reports that it is ready, waits
// for a line on in, works, and writes its Result as a line on out.
func RunWorker(ctx context.Context, open func(context.Context) (Target, error), w Work, in io.Reader, out io.Writer) error {
	var targets []Target
	for range max(1, w.Clients) {
		if w.Op == OpLoopback {
			break
		}
		t, err := open(ctx)
		if err != nil {
			return err
		}
		defer t.Close()
		targets = append(targets, t)
	}
	buf, err := unix.Mmap(-1, 0, int(w.sourceBytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(buf) //nolint:errcheck // the process ends
	switch w.Op {
	case OpWrite, OpWriteMemory, OpRandom, OpVerify:
		w.Source(buf)
	}
	if _, err := fmt.Fprintln(out, `{"ready":true}`); err != nil {
		return err
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return fmt.Errorf("bench: no start signal: %w", err)
	}
	start := time.Now()
	r, err := work(ctx, targets, w, buf)
	if r.Seconds == 0 {
		r.Seconds = time.Since(start).Seconds()
	}
	if err != nil {
		r.Error = err.Error()
	}
	for _, t := range targets {
		if h := t.Help(); h.Rebuilt+h.Hedged > r.Rebuilt+r.Hedged {
			r.ReadHelp = h
		}
	}
	return json.NewEncoder(out).Encode(r)
}

// maxSource limits the memory from which a file is written, repeatedly, and
// into which it is read. It is more than one process's share of the processor's
// caches.
const maxSource = 256 << 20

// sourceBytes is the length of the work's source, in bytes.
func (w *Work) sourceBytes() int64 {
	if w.Op == OpLoopback {
		return moraine.BlockSize // it has buffers of its own
	}
	if w.Bytes <= 0 {
		return maxSource
	}
	return min(maxSource, w.Bytes)
}

// Source fills buf with the bytes that OpWrite writes, repeatedly; Period is their
// length. They depend on the path and the size.
func (w *Work) Source(buf []byte) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", w.Path, w.Bytes)
	fillRandom(buf, h.Sum64())
}

// Period returns the length in bytes after which the contents of the file repeat.
func (w *Work) Period() int64 { return w.sourceBytes() }

func work(ctx context.Context, targets []Target, w Work, buf []byte) (Result, error) {
	switch w.Op {
	case OpWrite:
		return Result{Bytes: w.Bytes, Ops: 1}, writeFiles(ctx, targets[0], w, buf)
	case OpRead:
		n, err := targets[0].Read(ctx, w.Path, buf)
		return Result{Bytes: n, Ops: 1}, err
	case OpWriteMemory, OpRandom, OpVerify:
		return inMemory(ctx, targets[0], w, buf)
	case OpLoopback:
		return w.Loopback.work(ctx, w.Bytes, w.Seconds)
	case OpCreate, OpStat, OpStatLoaded, OpReadDir, OpRename, OpUnlink, OpCommit, OpSmallFile:
		return small(ctx, targets, w)
	}
	return Result{}, fmt.Errorf("bench: unknown work %q", w.Op)
}
