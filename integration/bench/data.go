package bench

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
)

// minDevicePerByte is the least that a durable 4+2 write must move to its
// devices for each file byte: what moved less is no record but an error.
const minDevicePerByte = 1.5

// works splits bytes over the clients, a file for each.
func (e *Env) works(op Op, dir string) []Work {
	each := e.Bytes / int64(e.Clients) / moraine.BlockSize * moraine.BlockSize
	works := make([]Work, e.Clients)
	for i := range works {
		works[i] = Work{Op: op, Path: fmt.Sprintf("%s/file-%d", dir, i), Bytes: each}
	}
	return works
}

// dataDir is where the data benchmarks work, below the target's root.
const dataDir = "/bench"

// Write measures sequential writes by e.Clients processes: a durable one, and one to
// level memory where the chunkservers have the memory for it.
func Write(ctx context.Context, e *Env) ([]Line, error) {
	lines, err := writeDurably(ctx, e)
	if err != nil || e.MemoryBytes == 0 {
		return lines, err
	}
	memory, err := WriteMemory(ctx, e)
	return append(lines, memory...), err
}

func writeDurably(ctx context.Context, e *Env) ([]Line, error) {
	e.Progress("the disk, before")
	w0, _, err := e.disk(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("write")
	u, bytes, err := e.write(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("the disk, after")
	w1, _, err := e.disk(ctx)
	if err != nil {
		return nil, err
	}
	line := e.rate("write", bytes, u, u.wrote).against(max(w0, w1)/1.5/gb, "disk/1.5")
	if e.Cluster == nil {
		line.LimitName = "disk/1.5 of --dir"
	} else if _, _, known := diskBytes(e.Dir); known && float64(u.wrote) < minDevicePerByte*bytes {
		return nil, fmt.Errorf("bench: %d device bytes for %.0f file bytes: a durable 4+2 write moves at least %.1f for each", u.wrote, bytes, minDevicePerByte)
	}
	lines := []Line{line}
	if u.commands > 0 {
		lines = append(lines, Line{Name: e.name("write-metadata-commands"), Value: u.commands / (bytes / gb), Unit: "commands/GB"})
	}
	return lines, nil
}

func (e *Env) write(ctx context.Context) (usage, float64, error) {
	if err := e.mkdir(ctx, dataDir); err != nil {
		return usage{}, 0, err
	}
	results, u, err := e.run(ctx, e.works(OpWrite, dataDir))
	return u, sum(results), err
}

func sum(results []Result) (bytes float64) {
	for _, r := range results {
		bytes += float64(r.Bytes)
	}
	return bytes
}

// Read measures sequential reads of what Write wrote: a cold one, and those of the
// memory tier where the chunkservers have the memory for them.
func Read(ctx context.Context, e *Env) ([]Line, error) {
	var memory []Line
	if e.MemoryBytes > 0 {
		var err error
		// First: what was just written is in memory with its parity, which a read that
		// is late asks for.
		if memory, err = ReadMemory(ctx, e); err != nil {
			return nil, err
		}
	}
	lines, err := readCold(ctx, e)
	return append(lines, memory...), err
}

func readCold(ctx context.Context, e *Env) ([]Line, error) {
	if err := e.ensureData(ctx); err != nil {
		return nil, err
	}
	line, err := e.read(ctx, "read")
	if err != nil {
		return nil, err
	}
	return []Line{line}, nil
}

// ReadDegraded measures the same read healthy, and with two chunkservers dead.
func ReadDegraded(ctx context.Context, e *Env) ([]Line, error) {
	if e.Cluster == nil {
		return nil, fmt.Errorf("bench: read-degraded kills chunkservers, so it starts a cluster of its own: leave --endpoint and --path out")
	}
	if err := e.ensureData(ctx); err != nil {
		return nil, err
	}
	healthy, err := e.read(ctx, "read")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"n2", "n5"} {
		if err := e.Cluster.Node(name).Kill(); err != nil {
			return nil, err
		}
	}
	degraded, err := e.read(ctx, "read-degraded")
	if err != nil {
		return nil, err
	}
	if e.rebuilt == 0 {
		return nil, fmt.Errorf("bench: nothing was rebuilt from parity with two chunkservers dead")
	}
	return []Line{healthy, degraded.against(healthy.Value, e.name("read"))}, nil
}

func (e *Env) ensureData(ctx context.Context) error {
	if e.written {
		return nil
	}
	e.Progress("writing what is read")
	_, _, err := e.write(ctx)
	e.written = err == nil
	return err
}

func (e *Env) read(ctx context.Context, name string) (Line, error) {
	e.Progress("%s, cold", name)
	_, r0, err := e.disk(ctx)
	if err != nil {
		return Line{}, err
	}
	if err := e.cool(ctx); err != nil {
		return Line{}, err
	}
	results, u, err := e.run(ctx, e.works(OpRead, dataDir))
	if err != nil {
		return Line{}, err
	}
	e.rebuilt = 0
	for _, r := range results {
		e.rebuilt += r.Rebuilt
	}
	_, r1, err := e.disk(ctx)
	if err != nil {
		return Line{}, err
	}
	return e.rate(name, sum(results), u, u.read).against(max(r0, r1)/gb, "disk"), nil
}

// rate makes a line in GB/s.
func (e *Env) rate(name string, bytes float64, u usage, device uint64) Line {
	return Line{Name: e.name(name), Value: perSecond(bytes, u.wall) / gb, Unit: "GB/s",
		CPU: u.cpu / (bytes / gb), DeviceBytes: device, Syncs: u.syncs}
}

// disk measures the file system of e.Dir with as many bytes as a run.
func (e *Env) disk(ctx context.Context) (write, read float64, err error) {
	return Disk(ctx, e.Dir, e.Devices, e.Bytes)
}
