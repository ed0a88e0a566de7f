package ckptfaults_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
)

// flipInArenas: a bit of each slot of the agents changes after the step is committed. A restart, which
// reads the slots, restores the right bytes.
func flipInArenas(ctx context.Context, w *world) error {
	if err := w.team.commit(ctx, moments{}); err != nil {
		return err
	}
	for _, n := range w.nodes {
		slots, err := filepath.Glob(filepath.Join(n.arena(), "slot-????????????????"))
		if err != nil {
			return err
		}
		for _, name := range slots {
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				continue // the agent has removed it
			}
			err = flipBit(f, w.rng.Int64N(partBytes), w.rng.IntN(8))
			_ = f.Close()
			if err != nil {
				return err
			}
		}
	}
	return w.relaunch(ctx, launch{})
}

type bytesAt interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
}

func flipBit(f bytesAt, at int64, bit int) error {
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return err
	}
	b[0] ^= 1 << bit
	_, err := f.WriteAt(b[:], at)
	return err
}

// flipOnDisks: a bit of each chunk on the disks of as many hosts as a stripe can lose changes. They
// restart, so that nothing is read from their memory.
func flipOnDisks(ctx context.Context, w *world) error {
	if err := w.team.commit(ctx, moments{}); err != nil {
		return err
	}
	flipped := 0
	for _, host := range victims {
		n, err := flipChunks(w.c.Disk(host))
		if err != nil {
			return err
		}
		flipped += n
	}
	if flipped == 0 {
		return fmt.Errorf("%v have no chunk", victims)
	}
	w.log("%d chunks", flipped)
	w.c.Kill(victims...)
	if err := w.c.Restart(victims...); err != nil {
		return err
	}
	return w.relaunch(ctx, launch{})
}

func flipChunks(fs *vfs.Mem) (flipped int, err error) {
	const dir = "/device1/segments"
	names, err := fs.List(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		file := path.Join(dir, name)
		if _, err := disk.InspectSegment(fs, file, false, func(r disk.RecordInfo) error {
			if r.Tombstone != nil {
				return nil
			}
			flipped++
			return flipInFile(fs, file, r.Offset+r.Size-moraine.BlockSize/2)
		}); err != nil {
			return flipped, err
		}
	}
	return flipped, nil
}

func flipInFile(fs *vfs.Mem, name string, at int64) error {
	f, err := fs.Open(name, vfs.Read|vfs.Write)
	if err != nil {
		return err
	}
	defer f.Close()
	return flipBit(f, at, 2)
}

// readUnverified is a restore that takes the bytes in the slots of the agents as they are.
func (w *world) readUnverified(ctx context.Context, k *ckpt.Checkpoint) ([]byte, error) {
	var all []byte
	for rank := range k.World() {
		conn, err := agentproto.Dial(ctx, w.node(rank).socket())
		if err != nil {
			return nil, err
		}
		reply, files, err := conn.Exchange(ctx, &agentproto.Request{Read: &agentproto.Read{Run: runPath, Rank: rank, Attempt: k.Info.Attempt, Step: k.Info.Step}})
		_ = conn.Close()
		if err != nil {
			return readTensor(ctx, k)
		}
		p := make([]byte, partBytes)
		for _, t := range reply.Read.Seal.Tensors {
			_, err = files[0].ReadAt(p, t.At)
		}
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p...)
	}
	return all, nil
}
