package bench

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
)

// minDevicePerByte is the least that a durable 4+2 write must move to its devices
// for each file byte. A run that moved less is an error, not a result.
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

// dataDir is the directory of the data benchmarks, below the target's root.
const dataDir = "/bench"

// Write measures sequential writes by e.Clients processes: a durable one and, if
// the chunkservers have the memory, one to level memory.
func Write(ctx context.Context, e *Env) ([]Line, error) {
	lines, u, err := writeDurably(ctx, e)
	if err != nil {
		return nil, err
	}
	if e.Cluster != nil {
		lines = append(lines, Line{Name: e.name("write-rss"), Value: u.rssEnd / 1e6, Unit: "MB"}.against(u.rss/1e6, "before it"))
	}
	if e.MemoryBytes == 0 {
		return lines, nil
	}
	memory, err := WriteMemory(ctx, e)
	return append(lines, memory...), err
}

func writeDurably(ctx context.Context, e *Env) ([]Line, usage, error) {
	e.Progress("the disk, before")
	w0, _, err := e.disk(ctx)
	if err != nil {
		return nil, usage{}, err
	}
	e.Progress("write")
	u, bytes, err := e.write(ctx, e.rotating(e.works(OpWrite, dataDir)))
	if err != nil {
		return nil, u, err
	}
	e.Progress("the disk, after")
	w1, _, err := e.disk(ctx)
	if err != nil {
		return nil, u, err
	}
	line := e.rate("write", bytes, u, u.wrote).against(max(w0, w1)/1.5/gb, "disk/1.5")
	if e.Cluster == nil {
		line.LimitName = "disk/1.5 of --dir"
	} else if _, _, known := diskBytes(e.Dir); known && float64(u.wrote) < minDevicePerByte*bytes {
		return nil, u, fmt.Errorf("bench: %d device bytes for %.0f file bytes: a durable 4+2 write moves at least %.1f for each", u.wrote, bytes, minDevicePerByte)
	}
	lines := []Line{line}
	if u.commands > 0 {
		lines = append(lines, Line{Name: e.name("write-metadata-commands"), Value: u.commands / (bytes / gb), Unit: "commands/GB"})
	}
	return lines, u, nil
}

func (e *Env) write(ctx context.Context, works []Work) (usage, float64, error) {
	if err := e.mkdir(ctx, dataDir); err != nil {
		return usage{}, 0, err
	}
	results, u, err := e.run(ctx, works)
	return u, sum(results), err
}

func sum(results []Result) (bytes float64) {
	for _, r := range results {
		bytes += float64(r.Bytes)
	}
	return bytes
}

// Read measures sequential reads of the files of Write: a cold one, and those of
// the memory tier if the chunkservers have the memory. On a cluster of its own it
// also measures a cold read with a chunkserver that hangs, and one with two dead
// ones.
func Read(ctx context.Context, e *Env) ([]Line, error) {
	var memory []Line
	if e.MemoryBytes > 0 {
		var err error
		// First, since recent writes are in memory with their parity, which a late
		// read requests.
		if memory, err = ReadMemory(ctx, e); err != nil {
			return nil, err
		}
	}
	lines, err := readCold(ctx, e)
	if err != nil || e.Cluster == nil {
		return append(lines, memory...), err
	}
	healthy := lines[0]
	lines = append(lines, memory...)
	for _, harmed := range []func(context.Context, *Env, Line) ([]Line, error){readHedged, readDegraded} {
		more, err := harmed(ctx, e, healthy)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// readCold measures a cold read, compared with the disk.
func readCold(ctx context.Context, e *Env) ([]Line, error) {
	if err := e.ensureData(ctx); err != nil {
		return nil, err
	}
	_, r0, err := e.disk(ctx)
	if err != nil {
		return nil, err
	}
	line, _, err := e.read(ctx, "read", nil)
	if err != nil {
		return nil, err
	}
	_, r1, err := e.disk(ctx)
	if err != nil {
		return nil, err
	}
	return []Line{line.against(max(r0, r1)/gb, "disk")}, nil
}

func (e *Env) ensureData(ctx context.Context) error {
	if e.written {
		return nil
	}
	e.Progress("writing the files to read")
	_, _, err := e.write(ctx, e.works(OpWrite, dataDir))
	e.written = err == nil
	return err
}

// read is a cold read under a condition (runUnder), with the help that the reads
// needed.
func (e *Env) read(ctx context.Context, name string, condition func() (end func() error, err error)) (line Line, help ReadHelp, err error) {
	e.Progress("%s, cold", name)
	if err := e.servers().cool(ctx); err != nil {
		return line, help, err
	}
	results, u, err := e.runUnder(ctx, e.works(OpRead, dataDir), condition)
	if err != nil {
		return line, help, err
	}
	for _, r := range results {
		help.add(r.ReadHelp)
	}
	return e.rate(name, sum(results), u, u.read), help, nil
}

// rate makes a line in GB/s.
func (e *Env) rate(name string, bytes float64, u usage, device uint64) Line {
	return Line{Name: e.name(name), Value: perSecond(bytes, u.wall) / gb, Unit: "GB/s",
		CPU: u.cpu / (bytes / gb), DeviceBytes: device, Syncs: u.syncs}
}

// disk measures the file system of e.Dir with as many bytes as a run. If a rotating
// run leaves files, it uses a quarter of their size.
func (e *Env) disk(ctx context.Context) (write, read float64, err error) {
	bytes := e.Bytes
	if e.rotates() {
		bytes = e.WorkingSet / 4
	}
	return Disk(ctx, e.Dir, e.Devices, bytes)
}
