package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
)

const (
	// memoryDir is the directory of files at level memory, below the target's root.
	memoryDir = "/bench-memory"
	// minAtMemory is the least part of a write's chunks that must be acknowledged
	// from memory. If more waited for the devices, because too much was dirty, the
	// figure would be that of the devices.
	minAtMemory = 0.9
	// maxMisses is the greatest part of the reads of chunks that may go to a
	// device. With more, the figure would not be that of memory.
	maxMisses = 0.001
	// durablePatience limits the wait until memory is written to the devices.
	durablePatience = 10 * time.Minute
)

// WriteMemory measures a sequential write that is acknowledged at level memory,
// compared with the speed of loopback. The written bytes must really have been in
// memory. Afterwards they must be on the devices, with the right contents.
func WriteMemory(ctx context.Context, e *Env) ([]Line, error) {
	m := memoryWork(e, OpWriteMemory, memoryDir)
	total := workBytes(m.works)
	limit0, err := e.loopbackRate(ctx, "loopback-put", true, total)
	if err != nil {
		return nil, err
	}
	if err := e.room(ctx, memoryDir); err != nil {
		return nil, err
	}
	e.Progress("write-memory")
	before, err := e.servers().tier(ctx)
	if err != nil {
		return nil, err
	}
	results, u, err := e.run(ctx, m.works)
	if err != nil {
		return nil, err
	}
	e.Progress("until it is durable")
	durable := time.Now()
	if err := m.waitNVMe(ctx); err != nil {
		return nil, err
	}
	took := time.Since(durable)
	share, err := e.servers().atMemory(ctx, before)
	if err != nil {
		return nil, err
	}
	limit1, err := e.loopbackRate(ctx, "loopback-put", true, total)
	if err != nil {
		return nil, err
	}
	if err := e.verify(ctx, m.works); err != nil {
		return nil, err
	}
	limit := faster(limit0, limit1)
	return []Line{
		limit,
		e.rate("write-memory", sum(results), u, u.wrote).against(limit.Value/1.5, "loopback/1.5"),
		{Name: e.name("write-memory-acknowledged"), Value: share, Unit: "of chunks at memory"},
		{Name: e.name("write-memory-durable"), Value: took.Seconds(), Unit: "s after it"},
	}, nil
}

// ReadMemory measures a sequential read, and random reads of 64 KiB and of 4 KiB,
// from the chunkservers' memory, compared with the speed of loopback.
func ReadMemory(ctx context.Context, e *Env) ([]Line, error) {
	m := memoryWork(e, OpRead, dataDir)
	total := workBytes(m.works)
	if err := m.warm(ctx); err != nil {
		return nil, err
	}
	limit0, err := e.loopbackRate(ctx, "loopback-get", false, total)
	if err != nil {
		return nil, err
	}
	e.Progress("read-memory")
	results, u, err := m.read(ctx, m.works)
	if err != nil {
		return nil, err
	}
	limit1, err := e.loopbackRate(ctx, "loopback-get", false, total)
	if err != nil {
		return nil, err
	}
	limit := faster(limit0, limit1)
	lines := []Line{limit, e.rate("read-memory", sum(results), u, u.read).against(limit.Value, "loopback")}
	for _, r := range []struct {
		name  string
		block int
	}{{"rand64k-memory", 64 << 10}, {"rand4k-memory", 4 << 10}} {
		line, err := m.random(ctx, r.name, r.block)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// randomInFlight is how many random reads run concurrently, over all clients.
const randomInFlight = 64

// random measures random reads of one size from memory.
func (m *memoryFiles) random(ctx context.Context, name string, block int) (Line, error) {
	works := append([]Work(nil), m.works...)
	for i := range works {
		works[i].Op, works[i].Block, works[i].Seconds = OpRandom, block, m.Seconds
		works[i].InFlight = max(1, randomInFlight/len(works))
	}
	limit := Loopback{Block: block, InFlight: randomInFlight}
	m.Progress("round trips of %d KiB over loopback", block>>10)
	trips, _, err := m.loopback(ctx, limit, 0)
	if err != nil {
		return Line{}, err
	}
	m.Progress("%s", name)
	results, u, err := m.read(ctx, works)
	if err != nil {
		return Line{}, err
	}
	all := Result{Seconds: u.wall.Seconds()}
	for _, r := range results {
		all.Ops += r.Ops
	}
	line := m.opsLine(name, all, u)
	line.DeviceBytes = u.read
	return line.against(float64(trips.Ops)/trips.Seconds, "loopback round trips"), nil
}

// memoryFiles are as many bytes of files as the chunkservers' memory holds.
type memoryFiles struct {
	*Env
	dir   string
	works []Work
}

// memoryWork returns works on such files. If all files of a run fit, these are those of the run.
func memoryWork(e *Env, op Op, dir string) *memoryFiles {
	m := *e
	m.Bytes = min(e.Bytes, MemoryHolds(e.MemoryBytes))
	if e.rotates() {
		m.Bytes = min(m.Bytes, e.WorkingSet/4)
	}
	if m.Bytes < e.Bytes {
		dir = memoryDir
	}
	return &memoryFiles{Env: e, dir: dir, works: m.works(op, dir)}
}

func workBytes(works []Work) (bytes int64) {
	for _, w := range works {
		bytes += w.Bytes
	}
	return bytes
}

// warm makes the files and reads them into the memory of the chunkservers, until no
// read goes to a device.
func (m *memoryFiles) warm(ctx context.Context) error {
	if m.dir == dataDir {
		if err := m.ensureData(ctx); err != nil {
			return err
		}
	} else {
		m.Progress("writing as much as memory holds")
		if err := m.mkdir(ctx, memoryDir); err != nil {
			return err
		}
		if _, _, err := m.run(ctx, withOp(m.works, OpWrite)); err != nil {
			return err
		}
	}
	m.Progress("reading it into memory")
	const passes = 4
	var d tierCounts
	for range passes {
		before, err := m.servers().tier(ctx)
		if err != nil {
			return err
		}
		if _, _, err := m.run(ctx, m.works); err != nil {
			return err
		}
		after, err := m.servers().tier(ctx)
		if err != nil {
			return err
		}
		if d = after.since(before); !d.missed() {
			return nil
		}
	}
	return fmt.Errorf("bench: after %d reads of %d bytes, %.0f reads of chunks still went to devices: the chunkservers' memory is too small", passes, workBytes(m.works), d.misses)
}

func withOp(works []Work, op Op) []Work {
	out := append([]Work(nil), works...)
	for i := range out {
		out[i].Op = op
	}
	return out
}

// read runs reads that the chunkservers must all answer from memory.
func (m *memoryFiles) read(ctx context.Context, works []Work) ([]Result, usage, error) {
	before, err := m.servers().tier(ctx)
	if err != nil {
		return nil, usage{}, err
	}
	results, u, err := m.run(ctx, works)
	if err != nil {
		return nil, u, err
	}
	after, err := m.servers().tier(ctx)
	if err != nil {
		return nil, u, err
	}
	d := after.since(before)
	var bytes float64
	for _, r := range results {
		bytes += float64(r.Bytes)
	}
	switch {
	case d.missed():
		err = fmt.Errorf("bench: %.0f of %.0f reads of chunks went to a device: the figure would not be that of memory", d.misses, d.hits+d.misses)
	case d.served < bytes:
		err = fmt.Errorf("bench: %.0f bytes were read but only %.0f served by chunkservers: the rest came from elsewhere", bytes, d.served)
	}
	return results, u, err
}

// tierCounts is the counts of the chunkservers' memory so far, all together.
type tierCounts struct {
	hits, misses  float64 // reads of chunks
	served        float64 // bytes
	puts          float64 // chunks put
	written, gone float64 // chunks that were at level memory, by outcome
}

func (t tierCounts) since(b tierCounts) tierCounts {
	return tierCounts{t.hits - b.hits, t.misses - b.misses, t.served - b.served, t.puts - b.puts, t.written - b.written, t.gone - b.gone}
}

// missed reports whether more reads went to devices than maxMisses allows.
func (t tierCounts) missed() bool { return t.misses > maxMisses*(t.hits+t.misses) }

// tier adds up the counts of the chunkservers. It returns an error if one does not
// answer: otherwise its earlier counts would later appear as new ones.
func (s servers) tier(ctx context.Context) (t tierCounts, err error) {
	for _, n := range s.Nodes(devcluster.Chunkserver) {
		families, err := scrape(ctx, n.Admin)
		if err != nil {
			return t, fmt.Errorf("bench: the metrics of %s: %w", n.Name, err)
		}
		t.hits += total(families["moraine_chunkserver_memory_hits_total"])
		t.misses += total(families["moraine_chunkserver_memory_misses_total"])
		t.served += total(families["moraine_chunkserver_get_bytes_total"])
		t.puts += totalOf(families["moraine_chunkserver_puts_total"], "outcome", "ok")
		t.written += totalOf(families["moraine_chunkserver_settled_chunks_total"], "became", "written")
		t.gone += totalOf(families["moraine_chunkserver_settled_chunks_total"], "became", "gone")
	}
	return t, nil
}

// waitNVMe returns when the files are at level nvme.
func (m *memoryFiles) waitNVMe(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, durablePatience)
	defer cancel()
	c, end, err := m.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, w := range m.works {
		if err := untilNVMe(ctx, c, w.Path); err != nil {
			return fmt.Errorf("bench: files acknowledged at level memory did not become durable: %w", err)
		}
	}
	return nil
}

// atMemory returns the share of chunks that servers acknowledged at level memory,
// of all chunks written since before. A server counts the outcome of a chunk just
// after the metadata has it.
func (s servers) atMemory(ctx context.Context, before tierCounts) (share float64, err error) {
	const looks = 20
	for range looks {
		now, err := s.tier(ctx)
		if err != nil {
			return 0, err
		}
		d := now.since(before)
		if d.gone > 0 {
			return 0, fmt.Errorf("bench: %.0f chunks in memory were lost", d.gone)
		}
		if share = d.written / max(1, d.puts); share >= 1 {
			break
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
	if share < minAtMemory {
		err = fmt.Errorf("bench: only %.0f%% of the chunks were acknowledged at level memory: the others exceeded the limit of dirty memory. Write less, or give the chunkservers more memory", 100*share)
	}
	return share, err
}

// verify compares the files, read cold, with the written bytes.
func (e *Env) verify(ctx context.Context, works []Work) error {
	e.Progress("comparing the files with the written bytes")
	if err := e.servers().cool(ctx); err != nil {
		return err
	}
	_, _, err := e.run(ctx, withOp(works, OpVerify))
	return err
}

// faster returns the line with the greater value: a limit is the better of before
// and after.
func faster(a, b Line) Line {
	if b.Value > a.Value {
		return b
	}
	return a
}
