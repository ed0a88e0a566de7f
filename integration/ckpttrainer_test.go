package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// trainerVariable makes this executable one rank of a launch: it has a trainerSpec.
const trainerVariable = "MORAINE_TEST_TRAINER"

// trainerSpec says what a trainer does: it restores the newest step, and saves the next one.
type trainerSpec struct {
	Metadata           [][]string
	Certs, Mode, Agent string
	Restart            uint64
	Rank, World        uint32
	// InMemory makes the service accept the part at level memory.
	InMemory bool
	// SealTimeout is that of its save.
	SealTimeout time.Duration
}

// trainerEvent is a line that a trainer prints: At is staged, local, memory or nvme, or Error is set. After
// staged it waits for a line.
type trainerEvent struct {
	At, Kind, Error string
	Attempt         uint32
	Step            uint64
}

const (
	trainedRun = "/runs/trained"
	// sliceBytes is what a rank saves in a step.
	sliceBytes = 512 << 10
)

// trainedSlice is what a rank saves: no two steps of any attempts share bytes.
func trainedSlice(attempt uint32, step uint64, rank uint32) []byte {
	p := make([]byte, sliceBytes)
	var seed [32]byte
	copy(seed[:], fmt.Sprintf("%d %d %d", attempt, step, rank))
	_, _ = rand.NewChaCha8(seed).Read(p)
	return p
}

// beTrainer is main of a trainer.
func beTrainer(spec string) {
	var s trainerSpec
	err := json.Unmarshal([]byte(spec), &s)
	if err == nil {
		err = s.train(context.Background())
	}
	if err != nil {
		say(trainerEvent{Kind: moraine.KindOf(err).String(), Error: err.Error()})
		os.Exit(1)
	}
}

func say(e trainerEvent) { _ = json.NewEncoder(os.Stdout).Encode(e) }

func (s trainerSpec) train(ctx context.Context) error {
	id, err := pki.LoadIdentity(pki.FilesIn(s.Certs, "admin"))
	if err != nil {
		return err
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(s.Mode)}, transport.PoolDeps{Identity: id})
	if err != nil {
		return err
	}
	cl, err := client.Dial(ctx, client.Config{Metadata: s.Metadata}, client.Deps{Dialer: pool})
	if err != nil {
		return err
	}
	run, err := ckpt.OpenRun(ctx, cl, trainedRun, ckpt.RunOptions{Rank: s.Rank, World: s.World, Agent: s.Agent,
		Launch: ckpt.Launch{Name: fmt.Sprintf("launch-%d", s.Restart), Job: "job", Restart: s.Restart}})
	if err != nil {
		return err
	}
	newest, err := s.restore(ctx, run)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := s.save(ctx, run, newest+1); err != nil {
		return err
	}
	return errors.Join(run.Close(ctx), cl.Close(), pool.Close())
}

// restore loads the newest step and returns its number; 0: there is none yet.
func (s trainerSpec) restore(ctx context.Context, run *ckpt.Run) (uint64, error) {
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Fix: true})
	if errors.Is(err, moraine.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return k.Info.Step, errors.Join(checkTrained(ctx, k), k.Close())
}

// errOtherBytes says that a step has not the bytes that its ranks saved.
var errOtherBytes = errors.New("other bytes")

// checkTrained compares all of a step with what its ranks saved.
func checkTrained(ctx context.Context, k *ckpt.Checkpoint) error {
	got, err := k.ReadTensor(ctx, "w")
	if err != nil {
		return err
	}
	for rank := range k.World() {
		if want := trainedSlice(k.Info.Attempt, k.Info.Step, rank); !bytes.HasPrefix(got, want) {
			return fmt.Errorf("attempt %d step %d rank %d: %w", k.Info.Attempt, k.Info.Step, rank, errOtherBytes)
		}
		got = got[sliceBytes:]
	}
	return nil
}

func (s trainerSpec) save(ctx context.Context, run *ckpt.Run, step uint64) error {
	opts := ckpt.BeginOptions{Level: moraine.NVMe, Bytes: sliceBytes, SealTimeout: s.SealTimeout}
	if s.InMemory {
		opts.Level = moraine.Memory
	}
	part, err := run.Begin(ctx, step, opts)
	if err != nil {
		return err
	}
	if err := part.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: ckpt.U8, Shape: []int64{sliceBytes}, Global: []int64{sliceBytes * int64(s.World)},
		Offset: []int64{sliceBytes * int64(s.Rank)}, Data: trainedSlice(run.Attempt(), step, s.Rank)}); err != nil {
		return err
	}
	e := trainerEvent{Attempt: run.Attempt(), Step: step}
	e.At = "staged"
	say(e)
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	if err := part.Seal(ctx); err != nil {
		return err
	}
	for _, level := range []moraine.Level{moraine.Local, moraine.Memory, moraine.NVMe} {
		if level == moraine.Memory && !s.InMemory {
			continue
		}
		if _, err := part.Wait(ctx, level); err != nil {
			return err
		}
		e.At = level.String()
		say(e)
	}
	return nil
}
