package ckpt

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// What a part has: tensors and blobs, copied, lent, or in the agent's memory already.

// Buffer returns n bytes of the agent's memory for the caller to fill, with a tensor's elements for
// example. AddTensor and AddBlob copy nothing of a Data that lies in it, and compute its checksums: after
// that the caller must not change those bytes. The bytes begin at a multiple of 64, are undefined, and
// are the caller's until Seal or Abort. They count against BeginOptions.Bytes. It needs an agent;
// without one, LendTensor copies nothing.
func (s *Part) Buffer(n int64) ([]byte, error) {
	s.adding.Lock()
	defer s.adding.Unlock()
	switch err := s.open(); {
	case err != nil:
		return nil, err
	case s.run.agent == nil:
		return nil, &moraine.Error{Op: "ckpt.Buffer", Ref: s.ref(), Kind: moraine.Unimplemented,
			Err: errors.New("without an agent there is no shared memory: use LendTensor, or set RunOptions.Agent")}
	case n <= 0:
		return nil, invalid("ckpt.Buffer", s.ref(), fmt.Errorf("a buffer of %d bytes", n))
	}
	p, err := s.stage.buffer(n)
	if err != nil {
		return nil, s.wrap(err)
	}
	return p, nil
}

// AddTensor copies t's bytes into the staging memory and computes their checksums. t.Data may
// change as soon as it returns, unless it lies in a Buffer: that is not copied. It waits for memory
// that earlier saves use. A rank may save several slices of one tensor.
func (s *Part) AddTensor(ctx context.Context, t Tensor) error {
	return s.addTensor(t, func(p []byte) (*staged, error) { return s.stage.add(ctx, p) })
}

// LendTensor adds t without a copy: the run reads t.Data until Done is closed, and the caller
// must not change it before. sums are the CRC32C of its blocks of 4 KiB, the last one shorter; nil
// lets LendTensor compute them. A sum that does not fit makes the part fail with Corrupt.
//
// With an agent, bytes in a Buffer stay where they are. Other bytes are copied into the agent's memory,
// as AddTensor does, because a sealed part outlives its trainer: they count against
// BeginOptions.Bytes, the caller may change them as soon as LendTensor returns, and a sum that does not
// fit is its error.
func (s *Part) LendTensor(t Tensor, sums []uint32) error {
	return s.addTensor(t, s.lent(sums))
}

// lent returns what stages bytes that the caller lends.
func (s *Part) lent(sums []uint32) func([]byte) (*staged, error) {
	if s.run.agent == nil {
		return lend(sums)
	}
	return func(p []byte) (*staged, error) { return s.stage.lendToAgent(p, sums) }
}

// ShareTensor adds t without its bytes: the part of the rank by stores the same slice, with the same
// bytes. The step cannot be committed unless a part does. It is for agents, which see the parts of
// several ranks. sums are as for LendTensor.
func (s *Part) ShareTensor(t Tensor, sums []uint32, by uint32) error {
	s.adding.Lock()
	defer s.adding.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	if s.run.agent != nil {
		return &moraine.Error{Op: "ckpt.ShareTensor", Ref: s.ref(), Kind: moraine.Unimplemented,
			Err: errors.New("with an agent, add the tensor in each rank: the agent stores it once")}
	}
	if err := t.normalize(); err != nil {
		return invalid("ckpt.ShareTensor", s.ref(), err)
	}
	st, err := lend(sums)(t.Data)
	if err != nil {
		return s.wrap(err)
	}
	s.shared = append(s.shared, sharedMeta{Name: t.Name, DType: t.DType.String(), Global: t.Global, Offset: t.Offset, Shape: t.Shape,
		Digest: digestBlocks(st.blocks, st.size).String(), Rank: by})
	return nil
}

func (s *Part) addTensor(t Tensor, stage func([]byte) (*staged, error)) error {
	defer s.stalled(s.run.opts.Clock.Now())
	s.adding.Lock()
	defer s.adding.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	if err := t.normalize(); err != nil {
		return invalid("ckpt.AddTensor", s.ref(), err)
	}
	if len(s.slices[t.Name]) == MaxFiles {
		return invalid("ckpt.AddTensor", s.ref(), tooManySlices(t.Name))
	}
	bytes, err := stage(t.Data)
	if err != nil {
		return s.wrap(err)
	}
	t.Data = nil
	s.slices[t.Name] = append(s.slices[t.Name], stagedTensor{t, bytes})
	return nil
}

// AddBlob copies data that is no tensor (the state of a random generator, the position of a
// data loader) into the staging memory. name consists of letters, digits, '.', '_' and '-'.
func (s *Part) AddBlob(ctx context.Context, name string, data []byte) error {
	return s.addBlob(name, data, func(p []byte) (*staged, error) { return s.stage.add(ctx, p) })
}

// LendBlob adds a blob without a copy; see LendTensor, also for what an agent changes.
func (s *Part) LendBlob(name string, data []byte, sums []uint32) error {
	return s.addBlob(name, data, s.lent(sums))
}

func (s *Part) addBlob(name string, data []byte, stage func([]byte) (*staged, error)) error {
	defer s.stalled(s.run.opts.Clock.Now())
	s.adding.Lock()
	defer s.adding.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	names := make([]string, len(s.blobs))
	for i := range s.blobs {
		names[i] = s.blobs[i].name
	}
	if err := checkBlob(name, names); err != nil {
		return invalid("ckpt.AddBlob", s.ref(), err)
	}
	bytes, err := stage(data)
	if err != nil {
		return s.wrap(err)
	}
	s.blobs = append(s.blobs, stagedBlob{name, bytes})
	return nil
}
