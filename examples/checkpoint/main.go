// Command checkpoint saves one step of a training run from four ranks, and restores it on
// three. In a real job each rank is a process on its own node; here each is a goroutine with
// its own client.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
)

const (
	run        = "/examples/run"
	savers     = 4
	restorers  = 3
	rows, cols = 1200, 1024 // of the one tensor, of float32: every rank has some of its rows
	rowBytes   = cols * 4
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := saveAndRestore(ctx); err != nil {
		log.Fatal(err)
	}
}

func saveAndRestore(ctx context.Context) error {
	step := uint64(time.Now().Unix()) // a trainer counts its own steps
	launch := ckpt.LaunchFromEnv(os.Getenv)
	if launch.Name == "" {
		launch.Name = fmt.Sprintf("example-%d", step)
	}
	if err := allRanks(ctx, savers, func(ctx context.Context, c *client.Client, rank uint32) error {
		return save(ctx, c, launch, step, rank)
	}); err != nil {
		return err
	}
	return allRanks(ctx, restorers, restore)
}

// connect opens a client with the settings in the environment.
func connect(ctx context.Context) (*client.Client, error) {
	return client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
}

// allRanks calls fn for each of world ranks, at the same time.
func allRanks(ctx context.Context, world uint32, fn func(context.Context, *client.Client, uint32) error) error {
	ranks, ctx := errgroup.WithContext(ctx)
	for rank := range world {
		ranks.Go(func() error {
			c, err := connect(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := fn(ctx, c, rank); err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			return nil
		})
	}
	return ranks.Wait()
}

// share returns the rows of the tensor that a rank has.
func share(rank, world uint32) (first, n int64) {
	first = int64(rank) * rows / int64(world)
	return first, int64(rank+1)*rows/int64(world) - first
}

// values returns some rows of the tensor: the data that a trainer would have on its GPU.
func values(step uint64, first, n int64) []byte {
	b := make([]byte, n*rowBytes)
	for i := range n * cols {
		binary.LittleEndian.PutUint32(b[i*4:], uint32(step)+uint32(first*cols+i))
	}
	return b
}

func save(ctx context.Context, c *client.Client, launch ckpt.Launch, step uint64, rank uint32) error {
	r, err := ckpt.OpenRun(ctx, c, run, ckpt.RunOptions{Launch: launch, Takeover: true, Rank: rank, World: savers, StagingBytes: 256 << 20})
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	first, n := share(rank, savers)
	part, err := r.Begin(ctx, step, ckpt.BeginOptions{Bytes: n * rowBytes}) // refused at once if they do not fit
	if err != nil {
		return err
	}
	err = part.AddTensor(ctx, ckpt.Tensor{Name: "weight", DType: ckpt.F32, Shape: []int64{n, cols},
		Global: []int64{rows, cols}, Offset: []int64{first, 0}, Data: values(step, first, n)})
	if err == nil {
		err = part.Seal(ctx)
	}
	if err != nil {
		part.Abort(err)
		return err
	}
	// The trainer continues here: it stood still for Stall only. Wait returns when the step of
	// all ranks is safe.
	info, err := part.Wait(ctx, moraine.NVMe)
	if err != nil {
		return err
	}
	fmt.Printf("rank %d saved step %d: it stood still for %v, the step is at level %s\n", rank, info.Step, part.Stall().Round(time.Microsecond), info.Level)
	return nil
}

func restore(ctx context.Context, c *client.Client, rank uint32) error {
	r, err := ckpt.OpenRun(ctx, c, run, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	latest, err := r.Resolve(ctx, ckpt.ResolveOptions{})
	if err != nil {
		return err
	}
	defer latest.Close()
	first, n := share(rank, restorers)
	dst := make([]byte, n*rowBytes)
	err = latest.Restore(ctx, []ckpt.SliceRequest{{Name: "weight", Offset: []int64{first, 0}, Shape: []int64{n, cols}, Dst: dst}})
	if err != nil {
		return err
	}
	if !bytes.Equal(dst, values(latest.Info.Step, first, n)) {
		return fmt.Errorf("step %d has other values than were saved", latest.Info.Step)
	}
	fmt.Printf("rank %d restored %d rows of step %d, and read %d bytes for them\n", rank, n, latest.Info.Step, latest.BytesRead())
	return nil
}
