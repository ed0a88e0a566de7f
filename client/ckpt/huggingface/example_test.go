package huggingface_test

import (
	"context"
	"log"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/huggingface"
)

// Write the newest step of a run as a model directory.
func ExampleNewExport() {
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
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	e, err := huggingface.NewExport(ctx, k, huggingface.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, file := range e.Files { // the index is last: with it the directory is complete
		if err := write(ctx, &file); err != nil {
			log.Fatal(err)
		}
	}
}

func write(ctx context.Context, file *huggingface.File) error {
	f, err := os.Create(filepath.Join("model", file.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := file.Write(ctx, f); err != nil {
		return err
	}
	return f.Sync()
}
