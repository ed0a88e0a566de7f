package ckpt

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// OpenRun opens the run whose directory is path, and joins or makes the attempt of opts.Launch. path may be
// written as moraine:///PATH, without hosts: c has its cluster.
// It makes missing directories above path. The caller closes the Run. It fails with Busy while
// another launch works on the run, and with Fenced if a later launch has overtaken this one.
// For a reader it fails with NotFound if there is no run. c must live until Close.
func OpenRun(ctx context.Context, c *client.Client, path string, opts RunOptions) (*Run, error) {
	return openRun(ctx, overClient{c}, path, opts)
}

// CheckStep folds the headers of a sealed step's parts into an index, and checks that the
// slices of every tensor cover it. It writes the index to an unlinked file of c's session and
// returns it. The mover that checks the step commits it with that file. If the step can never be
// committed the error is or wraps a *Verdict.
func CheckStep(ctx context.Context, c *client.Client, key client.StepKey) (IndexFile, error) {
	w, err := checkStep(ctx, overClient{c}, keyToWire(key))
	if err != nil {
		return IndexFile{}, err
	}
	return IndexFile{Inode: moraine.InodeID(w.Inode), Name: w.Name, CRC: w.Crc, Size: int64(w.Size)}, nil
}

// IndexFile is the index of a step that CheckStep wrote.
type IndexFile struct {
	Inode moraine.InodeID
	Name  string // that it gets in the step's directory
	CRC   uint32 // CRC32C of its bytes
	Size  int64
}

// GetStep returns a step in any state. It fails with NotFound if the run has no such step.
func GetStep(ctx context.Context, c *client.Client, key client.StepKey) (StepInfo, error) {
	s, err := getStep(ctx, overClient{c}, keyToWire(key))
	if err != nil {
		return StepInfo{}, err
	}
	return stepInfo(s), nil
}

// AwaitStep waits until a step that has begun is committed at level memory, nvme or object: see
// Run.WaitStep.
func AwaitStep(ctx context.Context, c *client.Client, key client.StepKey, level moraine.Level) (StepInfo, error) {
	return waitStep(ctx, overClient{c}, clock.System{}, keyToWire(key), level)
}

func keyToWire(k client.StepKey) *wire.StepKey {
	return &wire.StepKey{Run: uint64(k.Run), Attempt: k.Attempt, Step: k.Step}
}

// overClient implements cluster with a client.
type overClient struct{ *client.Client }

func (o overClient) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return rawclient.Of(o).Meta(ctx, req)
}

func (o overClient) create(ctx context.Context, near moraine.InodeID, level moraine.Level, deferred bool) (fileWriter, error) {
	opts := client.CreateOptions{Level: level}
	if deferred {
		opts.DeferFor = near
	}
	f, err := o.CreateUnlinked(ctx, near, opts)
	if err != nil {
		return nil, err
	}
	return clientFile{f}, nil
}

func (o overClient) open(ctx context.Context, inode moraine.InodeID) (fileReader, error) {
	return o.Inodes().Open(ctx, inode)
}

func (o overClient) openObject(ctx context.Context, inode moraine.InodeID) (fileReader, error) {
	return o.Inodes().OpenObject(ctx, inode)
}

func (o overClient) leaseStep(ctx context.Context, key *wire.StepKey) (release func(context.Context) error, err error) {
	return o.LeaseStep(ctx, client.StepKey{Run: moraine.InodeID(key.GetRun()), Attempt: key.GetAttempt(), Step: key.GetStep()})
}

func (o overClient) mkdirAll(ctx context.Context, path string) (moraine.InodeID, error) {
	attr, err := o.MkdirAll(ctx, path, 0o755)
	return attr.Inode(), err
}

// clientFile lends the staged bytes to the client: they do not change until the file has ended.
type clientFile struct{ *client.File }

// Write appends p without a copy; see fileWriter.
func (f clientFile) Write(p []byte) (int, error) { return f.WriteStable(p) }

// Commit makes the content durable; see fileWriter.
func (f clientFile) Commit(ctx context.Context) (committed, error) {
	inode := f.Inode()
	r, err := f.File.Commit(ctx)
	if err != nil {
		return committed{}, err
	}
	return committed{inode: inode, size: r.Attr.Size(), crc: r.CRC, protects: uint32(r.Protects), degraded: uint32(r.Degraded)}, nil
}
