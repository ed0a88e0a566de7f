package ckpt

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
)

// Checkpoint is an open, committed step. Methods may be called concurrently.
type Checkpoint struct {
	// Info is the step as of the opening.
	Info StepInfo

	c       cluster
	files   *stepFiles
	opts    ReadOptions
	memory  *limit.Semaphore            // of windows
	release func(context.Context) error // ends the read lease
	index   fileReader
	top     *indexTop
	prefer  uint32 // which replica this rank reads

	node      nodeParts // parts in the memory of this node, by rank; they may be none
	nodeBytes atomic.Int64
	closed    atomic.Bool

	mu     sync.Mutex
	blocks []cachedBlock // recently used, newest first
}

type cachedBlock struct {
	block   int
	tensors []TensorInfo
}

// cachedBlocks bounds the index blocks kept in memory.
const cachedBlocks = 32

// Files lists the files of the checkpoint; the caller must not change them.
func (k *Checkpoint) Files() []FileInfo { return k.top.files }

// World returns how many ranks saved the checkpoint.
func (k *Checkpoint) World() uint32 { return k.top.world }

// BytesRead returns how many bytes of parts have been read through k.
func (k *Checkpoint) BytesRead() int64 { return k.files.bytesRead.Load() }

// NodeBytes returns how many bytes have been read from the memory of this node, and not from the
// cluster.
func (k *Checkpoint) NodeBytes() int64 { return k.nodeBytes.Load() + k.files.bytesShared.Load() }

// Close releases the checkpoint: from here on it may be removed. Reads must have ended. A
// second Close does nothing.
func (k *Checkpoint) Close() error {
	if k.closed.Swap(true) {
		return nil
	}
	releaseStep(context.Background(), k.release)
	k.node.close()
	k.files.close()
	return k.index.Close()
}

// Tensors calls yield for each tensor in order of name, until it returns an error, which
// Tensors returns.
func (k *Checkpoint) Tensors(ctx context.Context, yield func(*TensorInfo) error) error {
	return k.TensorsAfter(ctx, "", yield) // no name is empty
}

// TensorsAfter is Tensors of the names after one.
func (k *Checkpoint) TensorsAfter(ctx context.Context, after string, yield func(*TensorInfo) error) error {
	first := max(sort.Search(len(k.top.blocks), func(i int) bool { return k.top.blocks[i].first > after })-1, 0)
	for i := first; i < len(k.top.blocks); i++ {
		tensors, err := k.block(ctx, i)
		if err != nil {
			return err
		}
		for j := range tensors {
			if tensors[j].Name <= after {
				continue
			}
			if err := yield(&tensors[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tensor finds a tensor by name, or fails with NotFound. The caller must not change the result.
func (k *Checkpoint) Tensor(ctx context.Context, name string) (*TensorInfo, error) {
	lo, hi := 0, len(k.top.blocks) // finds the last block whose first name is not past name
	for lo < hi {
		if m := (lo + hi) / 2; k.top.blocks[m].first <= name {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo > 0 {
		tensors, err := k.block(ctx, lo-1)
		if err != nil {
			return nil, err
		}
		for i := range tensors {
			if tensors[i].Name == name {
				return &tensors[i], nil
			}
		}
	}
	return nil, &moraine.Error{Op: "ckpt.Tensor", Ref: fmt.Sprintf("%s, tensor %q", k.Info.ref(), name), Kind: moraine.NotFound}
}

// block returns the tensors of the i-th block. Two callers may read the same block at the same
// time.
func (k *Checkpoint) block(ctx context.Context, i int) ([]TensorInfo, error) {
	k.mu.Lock()
	for j, b := range k.blocks {
		if b.block == i {
			copy(k.blocks[1:j+1], k.blocks[:j])
			k.blocks[0] = b
			k.mu.Unlock()
			return b.tensors, nil
		}
	}
	k.mu.Unlock()
	b := &k.top.blocks[i]
	buf := make([]byte, b.length)
	if err := k.index.ReadRange(ctx, buf, b.off); err != nil {
		return nil, err
	}
	tensors, err := parseBlock(buf, b, k.top.files)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.blocks = append([]cachedBlock{{i, tensors}}, k.blocks[:min(len(k.blocks), cachedBlocks-1)]...)
	return tensors, nil
}
