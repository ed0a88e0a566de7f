package ckpt

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/crc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// nodeParts are the parts of a step in the memory of this node, by rank.
type nodeParts map[uint32]*nodePart

// NodePart is one rank's sealed part in the memory of this node: a slot of its agent.
type NodePart struct {
	// Slot is the path of the slot's file, Bytes its length.
	Slot  string
	Bytes int64
	// Seal says where in the slot the tensors and blobs are.
	Seal agentproto.Seal
}

// UseNode lets k read from parts in the memory of this node, by rank, before it reads from the
// cluster. It maps their slots until Close, or the next UseNode; their bytes must not be replaced
// meanwhile. It is for agents: a run that was opened with RunOptions.Agent does it by itself. Do
// not call it during a read.
func (k *Checkpoint) UseNode(parts map[uint32]NodePart) {
	k.node.close()
	k.node = nodeParts{}
	for rank, p := range parts {
		f, err := os.Open(p.Slot)
		if err != nil {
			continue // the cluster has the bytes
		}
		if part := mapPart(f, p.Bytes, &p.Seal); part != nil {
			k.node[rank] = part
		}
		_ = f.Close() // the mapping keeps it
	}
}

// mapPart maps the slot of a part; nil if that fails, or if somebody has cut it: to read beyond its end
// would end the process.
func mapPart(f *os.File, bytes int64, seal *agentproto.Seal) *nodePart {
	if st, err := f.Stat(); err != nil || st.Size() < bytes {
		return nil
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	return newNodePart(mem, seal)
}

// nodePart is one rank's part in a slot of the agent, mapped for reading.
type nodePart struct {
	mem     []byte
	conn    io.Closer // the agent lets nobody write to the slot before it ends; nil: the caller sees to it
	tensors map[string][]*nodeSlice
	blobs   map[string]*nodeSlice
}

// nodeSlice is one slice or blob in a slot. What it has is only used if its digest is that of the
// committed index, and each block that is read has its sum.
type nodeSlice struct {
	offset, shape []int64
	mem           []byte
	sums          []uint32 // of the trainer; nil: computed at first use

	once   sync.Once
	digest Digest
}

// nodeParts asks the agent for the parts of a committed step. Whatever fails, the cluster has the
// bytes.
func (l *agentLink) nodeParts(ctx context.Context, path string, info StepInfo, world uint32) nodeParts {
	reply, err := agentproto.Ask(ctx, l.socket, &agentproto.Request{Status: &agentproto.Status{}})
	if err != nil {
		return nil
	}
	conn, err := agentproto.Dial(ctx, l.socket)
	if err != nil {
		return nil
	}
	parts := nodeParts{}
	for _, p := range reply.Status.Parts {
		if p.Run != path || p.Attempt != info.Attempt || p.Step != info.Step || p.World != world {
			continue
		}
		if part := readPart(ctx, conn, path, info, p.Rank); part != nil {
			parts[p.Rank] = part
		}
	}
	if len(parts) == 0 {
		_ = conn.Close() // nothing came by it
	}
	return parts
}

// readPart maps one part until conn ends; nil if the agent no longer has it.
func readPart(ctx context.Context, conn *agentproto.Conn, path string, info StepInfo, rank uint32) *nodePart {
	reply, files, err := conn.Exchange(ctx, &agentproto.Request{Read: &agentproto.Read{Run: path, Attempt: info.Attempt, Step: info.Step, Rank: rank}})
	defer closeFiles(files)
	if err != nil || len(files) != 1 {
		return nil
	}
	part := mapPart(files[0], reply.Read.Bytes, &reply.Read.Seal)
	if part != nil {
		part.conn = conn
	}
	return part
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a mapping keeps it
	}
}

// newNodePart finds the slices and blobs of a slot.
func newNodePart(mem []byte, seal *agentproto.Seal) *nodePart {
	p := &nodePart{mem: mem, tensors: map[string][]*nodeSlice{}, blobs: map[string]*nodeSlice{}}
	at := seal.SumsAt
	slice := func(from, size int64) *nodeSlice {
		s := &nodeSlice{mem: mem[from : from+size : from+size]}
		if seal.SumsAt != 0 {
			s.sums = make([]uint32, blockCount(int(size)))
			for i := range s.sums {
				s.sums[i] = binary.LittleEndian.Uint32(mem[at:])
				at += 4
			}
		}
		return s
	}
	for _, t := range seal.Tensors {
		s := slice(t.At, t.Bytes)
		s.offset, s.shape = t.Offset, t.Shape
		if t.Global == nil && t.Offset == nil {
			s.offset = make([]int64, len(t.Shape))
		}
		p.tensors[t.Name] = append(p.tensors[t.Name], s)
	}
	for _, b := range seal.Blobs {
		p.blobs[b.Name] = slice(b.At, b.Bytes)
	}
	return p
}

// close unmaps the parts, and then tells the agent.
func (n nodeParts) close() {
	for _, p := range n {
		unmap(p.mem)
	}
	for _, p := range n {
		if p.conn != nil {
			_ = p.conn.Close() // several parts may have the same one
		}
	}
}

// is reports whether the slice is the one with a digest.
func (s *nodeSlice) is(d Digest) bool {
	s.once.Do(func() {
		if s.sums == nil {
			s.sums = crc.Blocks(nil, s.mem)
		}
		s.digest = digestBlocks(s.sums, int64(len(s.mem)))
	})
	return s.digest == d
}

// read fills p from an offset on. It fails with Corrupt if a block that it touches does not have
// its sum.
func (s *nodeSlice) read(p []byte, off int64) error {
	var edge [moraine.BlockSize]byte
	for len(p) > 0 {
		block := off / moraine.BlockSize
		begin := block * moraine.BlockSize
		have := s.mem[begin:min(begin+moraine.BlockSize, int64(len(s.mem)))]
		n := copy(p, have[off-begin:])
		sum := s.sums[block]
		if n == len(have) {
			if crc.Sum(p[:n]) != sum {
				return errChangedSlot
			}
		} else { // the block is longer than what is wanted of it
			copied := edge[:copy(edge[:], have)]
			if crc.Sum(copied) != sum {
				return errChangedSlot
			}
			copy(p[:n], copied[off-begin:])
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// onNode returns a saved slice in the memory of this node; nil if it is not there. The part that stores
// the slice may be of another node: a part of this one that has left it to that one has the bytes too.
func (k *Checkpoint) onNode(t *TensorInfo, s *SliceInfo) *nodeSlice {
	if n := k.node[k.top.files[s.File].Rank].find(t.Name, s); n != nil {
		return n
	}
	for _, part := range k.node {
		if n := part.find(t.Name, s); n != nil {
			return n
		}
	}
	return nil
}

// find returns a slice of a part; nil if it has none, also for no part.
func (p *nodePart) find(name string, s *SliceInfo) *nodeSlice {
	if p == nil {
		return nil
	}
	for _, n := range p.tensors[name] {
		if slices.Equal(n.offset, s.Offset) && slices.Equal(n.shape, s.Shape) {
			return n
		}
	}
	return nil
}

// readFromNode reads the wanted range of a saved slice from the memory of this node, and reports
// whether it could: the bytes in dst are then verified.
func (k *Checkpoint) readFromNode(ctx context.Context, t *TensorInfo, s *SliceInfo, p *plan, dst []byte) bool {
	from := k.onNode(t, s)
	if from == nil {
		return false
	}
	bytes, err := k.readSlot(ctx, from, s, p, dst)
	switch {
	case err == nil:
		k.nodeBytes.Add(bytes)
	case isDamage(err): // memory that changed: the cluster has the bytes
		k.files.report(BadRange{File: k.top.files[s.File].Name, Offset: s.Begin, Bytes: int64(len(from.mem)), Level: moraine.Local, Err: err})
	}
	return err == nil
}

// readSlot reads the wanted range of a slice from its slot, and returns its length.
func (k *Checkpoint) readSlot(ctx context.Context, from *nodeSlice, s *SliceInfo, p *plan, dst []byte) (bytes int64, err error) {
	if !from.is(s.Digest) {
		return 0, errChangedSlot
	}
	var g errgroup.Group
	g.SetLimit(readsAtOnce)
	p.each(dst, k.opts.OverRead, func(w window) bool {
		bytes += w.useful
		g.Go(func() error {
			return k.readWindow(ctx, w, func(p []byte, off int64) error { return from.read(p, off-s.Begin) })
		})
		return true
	})
	return bytes, g.Wait()
}

// errChangedSlot is the error of a slice or blob whose bytes in the memory of this node are not
// those of the committed step.
var errChangedSlot = fmt.Errorf("%w: the memory of the agent changed after the seal", moraine.Corrupt)

// blobFromNode fills dst with a blob from the memory of this node, and reports whether it could.
func blobFromNode(k *Checkpoint, f *FileInfo, dst []byte) bool {
	part := k.node[f.Rank]
	if part == nil {
		return false
	}
	b := part.blobs[f.Blob]
	if b == nil || len(b.mem) != len(dst) {
		return false
	}
	if !b.is(f.Digest) || b.read(dst, 0) != nil {
		k.files.report(BadRange{File: f.Name, Bytes: f.Size, Level: moraine.Local, Err: errChangedSlot})
		return false
	}
	k.nodeBytes.Add(int64(len(dst)))
	return true
}
