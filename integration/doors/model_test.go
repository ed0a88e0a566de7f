package doors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/tiers/object/s3test"
	"github.com/morainefs/moraine/transport/wire"
)

// The random test: workers use all interfaces at once, on different directories at
// a time, each of them in turn on the same files. Files are flushed, evicted and
// staged, alone and as trees. Meanwhile the bucket fails requests, loses answers,
// and is killed and restarted; in the long form chunkservers are killed too, with
// their movers. The model is the promise of docs/semantics: after one interface has
// closed a file, every interface reads it.

// modelFile is the expected state of a file.
type modelFile struct {
	data []byte
	past []string // its earlier operations
}

func (f *modelFile) did(format string, args ...any) {
	f.past = append(f.past, fmt.Sprintf(format, args...))
	f.past = f.past[max(0, len(f.past)-40):]
}

// modelDir is a directory. The holder of mu has exclusive use of its contents.
type modelDir struct {
	mu    sync.Mutex
	names [2]string // it has one of them
	name  string
	files map[string]*modelFile
}

// run is one run of the test.
type run struct {
	t     *testing.T
	w     *world
	seed  uint64
	root  string
	doors []door
	dirs  []*modelDir

	outage sync.Mutex // held while the bucket is down
	down   sync.Mutex // held while a chunkserver is down
	mu     sync.Mutex // guards the fields below
	tally  tally
	failed bool
	// asked is the requests to the bucket through the proxy, by key.
	asked map[string][]string
}

// tally counts the operations.
type tally struct {
	runs, kills, crashes, faults, objects int
	read, written                         int64
	ops                                   map[string]int
}

func (a *tally) add(b tally) {
	a.runs, a.kills, a.crashes, a.faults = a.runs+b.runs, a.kills+b.kills, a.crashes+b.crashes, a.faults+b.faults
	a.read, a.written, a.objects = a.read+b.read, a.written+b.written, a.objects+b.objects
	for k, n := range b.ops {
		a.ops[k] += n
	}
}

// String lists it, one line an interface.
func (a *tally) String() string {
	out := fmt.Sprintf("%d runs, %.1f MB written, %.1f MB read and compared, the bucket killed %d times, a chunkserver with its mover %d times, %d requests to the bucket failed, %d objects audited",
		a.runs, float64(a.written)/1e6, float64(a.read)/1e6, a.kills, a.crashes, a.faults, a.objects)
	var keys []string
	for k := range a.ops {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		out += fmt.Sprintf("\n  %-20s %6d", k, a.ops[k])
	}
	return out
}

// TestEveryDoorAtOnce runs the model. At the end of each run every file is read
// through every interface, flushed, evicted, and read again. The bucket is compared
// with the records. Then everything is removed, and the bucket is empty except for
// what the records still have to delete.
func TestEveryDoorAtOnce(t *testing.T) {
	runs := testseed.Runs(t, 1, 120)
	seed := firstSeed(t)
	total := tally{ops: map[string]int{}}
	t.Parallel()
	// No process may be started once a file system is mounted, including the other
	// tests' store.
	s3test.Start(t)
	store := s3test.New(t)
	for n := range runs {
		s := seed + uint64(n)
		ok := t.Run(fmt.Sprintf("seed-%d", s), func(t *testing.T) {
			t.Logf("MORAINE_TEST_SEED=%d repeats it", s)
			total.add(runModel(t, store, s))
		})
		if !ok {
			break
		}
	}
	if !t.Failed() {
		t.Logf("no wrong byte, no lost file, no orphan: %s", &total)
	}
}

// workers run concurrently, and each takes steps.
const workers = 4

func steps() int {
	if long() {
		return 60
	}
	return 20
}

func runModel(t *testing.T, store *s3test.Server, seed uint64) tally {
	rng := rand.New(rand.NewPCG(seed, 0))
	r := &run{t: t, seed: seed, root: "/data", asked: map[string][]string{}, tally: tally{runs: 1, ops: map[string]int{}}}
	faulty := rng.IntN(2) == 0
	r.w = startWorld(t, worldOptions{store: store, endpoint: r.between(store, faulty, rng), prefix: prefixOf(seed)})
	client := &clientDoor{r.w.client(t, "client").Client}
	r.doors = []door{client, r.w.endpoint(t), r.w.mount(t, "mount1"), r.w.mount(t, "mount2")}
	r.makeDirs(rng)
	var group sync.WaitGroup
	for n := range workers {
		w := &worker{run: r, rng: rand.New(rand.NewPCG(seed, uint64(n+1)))}
		group.Go(func() { w.work(t.Context()) })
	}
	group.Wait()
	if r.failed {
		t.FailNow()
	}
	r.verifyEnd()
	return r.tally
}

// between returns the address of the bucket for chunkservers. In a faulty run it is
// a proxy that fails requests of any kind. In most it loses none that would keep a
// key unsettled until the lease has ended.
func (r *run) between(store *s3test.Server, faulty bool, rng *rand.Rand) string {
	p := s3test.NewProxy(r.t, store.Endpoint)
	faults := []s3test.Fault{s3test.Fail, s3test.FailAfter, s3test.Lose, s3test.Drop, s3test.CutRequest, s3test.CutReply}
	all := long() && rng.IntN(4) == 0
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(r.seed, 1<<32))
	choose := func(op string) s3test.Fault {
		mu.Lock()
		defer mu.Unlock()
		if !faulty || dice.IntN(20) > 0 || !all && (op == "delete" || op == "copy") {
			return s3test.Pass
		}
		r.mu.Lock()
		r.tally.faults++
		r.mu.Unlock()
		return faults[dice.IntN(len(faults))]
	}
	p.Set(func(req *http.Request) s3test.Fault {
		op := s3test.OpOf(req)
		f := choose(op)
		r.note(req, op, f)
		return f
	})
	r.t.Cleanup(func() { p.Set(nil) })
	return p.URL
}

// note records the requests to the bucket.
func (r *run) note(req *http.Request, op string, f s3test.Fault) {
	_, key, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	if key == "" {
		key = req.URL.Query().Get("prefix")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[key] = append(r.asked[key], fmt.Sprintf("%s %s %s fault %d from %s", time.Now().Format("05.000"), op, req.URL.RawQuery, f, req.RemoteAddr))
}

// tidy fails the test if the bucket does not match the records, and shows the
// requests for the keys concerned.
func (r *run) tidy(a *audit) {
	r.t.Helper()
	wrong := a.wrong()
	history := ""
	r.mu.Lock()
	for key, lines := range r.asked {
		if slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, key) }) {
			history += key + ":\n  " + strings.Join(lines, "\n  ") + "\n"
		}
	}
	r.mu.Unlock()
	require.Empty(r.t, wrong, "MORAINE_TEST_SEED=%d\n%s", r.seed, history)
}

// makeDirs makes the directories, some of which are flushed automatically.
func (r *run) makeDirs(rng *rand.Rand) {
	for n := range 5 {
		d := &modelDir{names: [2]string{fmt.Sprintf("d%d", n), fmt.Sprintf("other %d", n)}, files: map[string]*modelFile{}}
		d.name = d.names[0]
		r.dirs = append(r.dirs, d)
		a, err := r.w.admin.MkdirAll(r.t.Context(), r.path(d, ""), 0o755)
		require.NoError(r.t, err)
		if rng.IntN(3) == 0 {
			require.NoError(r.t, r.w.admin.Policies().Set(r.t.Context(), a.Inode(), onCommit))
		}
	}
	if rng.IntN(3) == 0 {
		a, err := r.w.admin.Stat(r.t.Context(), r.root)
		require.NoError(r.t, err)
		require.NoError(r.t, r.w.admin.Policies().Set(r.t.Context(), a.Inode(), onCommit))
	}
}

var onCommit = client.Policy{Flush: client.FlushOnCommit}

func (r *run) path(d *modelDir, name string) string { return path.Join(r.root, d.name, name) }

// count records an operation of an interface that moved some bytes.
func (r *run) count(what string, read, written int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.ops[what]++
	r.tally.read += int64(read)
	r.tally.written += int64(written)
}

func (r *run) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// fail records a mismatch; f may be nil.
func (r *run) fail(f *modelFile, format string, args ...any) {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
	past := ""
	if f != nil {
		for _, line := range f.past {
			past += "\n  " + line
		}
	}
	r.t.Errorf("MORAINE_TEST_SEED=%d: %s%s", r.seed, fmt.Sprintf(format, args...), past)
}

// compare compares an interface's result with the expected one.
func (r *run) compare(f *modelFile, d door, at string, off int, got, want []byte, err error) bool {
	switch {
	case err != nil:
		r.fail(f, "%s cannot read %s: %v", d.name(), at, err)
	case len(got) != len(want):
		r.fail(f, "%s reads %d bytes of %s from %d on, it has %d", d.name(), len(got), at, off, len(want))
	case !bytes.Equal(got, want):
		first := 0
		for got[first] == want[first] {
			first++
		}
		r.fail(f, "%s reads wrong bytes of %s from byte %d on (of %d)", d.name(), at, off+first, len(f.data))
	default:
		r.count(d.name()+" read", len(got), 0)
		return true
	}
	return false
}

// verifyAll reads all files through an interface, and lists them.
func (r *run) verifyAll(door func(n int) door) {
	n := 0
	for _, d := range r.dirs {
		for name, f := range d.files {
			n++
			at, by := r.path(d, name), door(n)
			got, err := by.read(r.t.Context(), at)
			r.compare(f, by, at, 0, got, f.data, err)
		}
		r.checkList(r.t.Context(), d, door(n))
	}
	if r.over() {
		r.t.FailNow()
	}
}

// checkList compares a listing with the model.
func (r *run) checkList(ctx context.Context, d *modelDir, by door) {
	want := []string{}
	for name := range d.files {
		want = append(want, name)
	}
	slices.Sort(want)
	got, err := by.list(ctx, r.path(d, ""))
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		r.fail(nil, "%s lists %q as %q (%v), it has %q", by.name(), r.path(d, ""), got, err, want)
		return
	}
	r.count(by.name()+" list", 0, 0)
}

// verifyEnd checks the state after all workers have ended.
func (r *run) verifyEnd() {
	t, w := r.t, r.w
	for _, d := range r.doors {
		r.verifyAll(func(int) door { return d })
	}
	w.moved(t, flush, r.root)
	w.settle(t)
	r.checkObjects()
	w.moved(t, evict, r.root)
	r.eachFile(func(at string, a client.Attr, f *modelFile) {
		require.True(t, a.Evicted() || a.Size() == 0, "%s is not evicted: %v", at, a)
	})
	r.verifyAll(func(n int) door { return r.doors[n%len(r.doors)] })
	w.moved(t, stage, r.root)
	w.settle(t)
	a := w.look(t)
	r.tidy(a)
	r.tally.objects += len(a.objects)
	require.NoError(t, w.admin.RemoveAll(t.Context(), r.root))
	eventually(t, time.Minute, "the removed files to linger no more", func() (bool, string) {
		w.settle(t)
		a = w.look(t)
		for _, o := range a.records {
			if o.RefCount != 0 {
				return false, fmt.Sprintf("everything was removed: %v", o)
			}
		}
		return true, ""
	})
	r.tidy(a)
	require.NoError(t, w.Check())
}

// eachFile calls fn with each file of the metadata service.
func (r *run) eachFile(fn func(at string, a client.Attr, f *modelFile)) {
	for _, d := range r.dirs {
		for name, f := range d.files {
			a, err := r.w.admin.Stat(r.t.Context(), r.path(d, name))
			require.NoError(r.t, err)
			fn(r.path(d, name), a, f)
		}
	}
}

// checkObjects compares every file's object, read directly from the bucket, with
// the model.
func (r *run) checkObjects() {
	a := r.w.look(r.t)
	r.tidy(a)
	byID := map[uint64]*wire.Object{}
	for _, o := range a.records {
		byID[o.Id] = o
	}
	bucket := &s3Door{core: r.w.direct}
	r.eachFile(func(at string, attr client.Attr, f *modelFile) {
		require.True(r.t, attr.Clean(), "%s was flushed and is not clean: %v\n%s", at, attr, r.w.jobsOf(r.t, attr.Inode()))
		o := byID[uint64(attr.Object())]
		require.NotNil(r.t, o, "%s: %v", at, attr)
		got, err := bucket.read(r.t.Context(), "/"+path.Join(r.w.config.Bucket, o.Key))
		require.NoError(r.t, err)
		if !bytes.Equal(got, f.data) {
			r.fail(f, "the object %s of %s has other bytes", o.Key, at)
		}
	})
	if r.over() {
		r.t.FailNow()
	}
}

// retried reports whether a job could not be queued or cancelled because of
// concurrent operations on its file.
func retried(err error) bool {
	return err == nil || errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.Stale)
}
