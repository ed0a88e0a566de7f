package incluster

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// SaveSteps commits checkpoints of one tensor each to the run at path, as one rank
// of one attempt. Each tensor holds the number of its step, so that a reader can
// distinguish them.
func (c *Client) SaveSteps(ctx context.Context, path string, steps ...uint64) error {
	run, err := ckpt.OpenRun(ctx, c.Client, path, ckpt.RunOptions{Launch: ckpt.Launch{Name: "steps of " + c.node}, Takeover: true})
	if err != nil {
		return err
	}
	defer run.Close(ctx) //nolint:errcheck // each save is waited for
	for _, step := range steps {
		part, err := run.Begin(ctx, step, ckpt.BeginOptions{})
		if err != nil {
			return err
		}
		err = part.AddTensor(ctx, ckpt.Tensor{Name: "step", DType: ckpt.U8, Shape: []int64{1 << 16}, Data: StepBytes(step)})
		if err == nil {
			err = part.Seal(ctx)
		}
		if err == nil {
			_, err = part.Wait(ctx, moraine.NVMe)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

// StepBytes is the tensor of a step that SaveSteps saves.
func StepBytes(step uint64) []byte {
	data := make([]byte, 1<<16)
	for n := range data {
		data[n] = byte(uint64(n) + step*7)
	}
	return data
}
