package ckpt_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
)

// Save this rank's part of a step, and train while it is written.
func ExampleRun_Begin() {
	ctx := context.Background()
	c, err := client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	run, err := ckpt.OpenRun(ctx, c, "/runs/llama", ckpt.RunOptions{Launch: ckpt.LaunchFromEnv(os.Getenv), Rank: 0, World: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close(ctx)

	part, err := run.Begin(ctx, 1000, ckpt.BeginOptions{})
	if err != nil {
		log.Fatal(err)
	}
	weights := make([]byte, 1024*4)
	err = part.AddTensor(ctx, ckpt.Tensor{Name: "weight", DType: ckpt.F32, Shape: []int64{1024}, Data: weights})
	if err == nil {
		err = part.Seal(ctx)
	}
	if err != nil {
		part.Abort(err)
		log.Fatal(err)
	}
	// From here on weights may change. Wait returns once all ranks have sealed their parts and
	// the step is committed.
	if _, err := part.Wait(ctx, moraine.NVMe); err != nil {
		log.Fatal(err)
	}
}

// Restore one slice of the newest step.
func ExampleRun_Resolve() {
	ctx := context.Background()
	c, err := client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	run, err := ckpt.OpenRun(ctx, c, "/runs/llama", ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close(ctx)

	latest, err := run.Resolve(ctx, ckpt.ResolveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer latest.Close() // until then no client can remove the step
	dst := make([]byte, 512*4)
	err = latest.Restore(ctx, []ckpt.SliceRequest{{Name: "weight", Offset: []int64{0}, Shape: []int64{512}, Dst: dst}})
	if err != nil {
		log.Fatal(err)
	}
}

// Slurm and torchrun say which start of which job a rank belongs to.
func ExampleLaunchFromEnv() {
	env := map[string]string{"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "0"}
	launch := ckpt.LaunchFromEnv(func(name string) string { return env[name] })
	fmt.Println(launch.Name, launch.Job)
	// Output: slurm-4711.0-requeue-2-restart-0 slurm-4711
}

// Restore with little memory, and see what was damaged on the way.
func ExampleCheckpoint_BadRanges() {
	ctx := context.Background()
	c, err := client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	run, err := ckpt.OpenRun(ctx, c, "/runs/llama", ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close(ctx)
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Step: 1000, Exact: true, Read: ckpt.ReadOptions{MemoryBytes: 16 << 20}})
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	weight, err := k.ReadTensor(ctx, "weight")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(weight), "bytes")
	for _, bad := range k.BadRanges() {
		fmt.Printf("%s: %d bytes at %d came from another level than %s: %v\n", bad.File, bad.Bytes, bad.Offset, bad.Level, bad.Err)
	}
}
