// Command dataset writes the shards of a small dataset. It reads them back as a
// data loader does: whole shards in order, then single samples at random.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"

	"github.com/morainefs/moraine/client"
)

const (
	dataset     = "/examples/dataset"
	shards      = 4
	samples     = 256 // in a shard
	sampleBytes = 16 << 10
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := writeAndRead(ctx); err != nil {
		log.Fatal(err)
	}
}

func writeAndRead(ctx context.Context) error {
	c, err := client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.MkdirAll(ctx, dataset, 0o755); err != nil {
		return err
	}
	for shard := range shards {
		if err := write(ctx, c, shard); err != nil {
			return err
		}
	}
	if err := readInOrder(ctx, c); err != nil {
		return err
	}
	return readAtRandom(ctx, c)
}

func path(shard int) string { return fmt.Sprintf("%s/shard-%04d", dataset, shard) }

// sample returns the bytes of one sample.
func sample(shard, n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%04d%04d", shard, n)), sampleBytes/8)
}

// write makes one shard. Commit makes it visible, whole.
func write(ctx context.Context, c *client.Client, shard int) error {
	f, err := c.Create(ctx, path(shard), client.CreateOptions{})
	if err != nil {
		return err
	}
	for n := range samples {
		if _, err := f.Write(sample(shard, n)); err != nil {
			f.Abort()
			return err
		}
	}
	_, err = f.Commit(ctx)
	return err
}

// readInOrder reads all shards from the first byte to the last. The reader fetches ahead.
func readInOrder(ctx context.Context, c *client.Client) error {
	var total int64
	for shard := range shards {
		r, err := c.OpenFile(ctx, path(shard))
		if err != nil {
			return err
		}
		stream := r.NewStream(ctx, 0)
		got, err := io.ReadAll(stream)
		if err := stream.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(got[len(got)-sampleBytes:], sample(shard, samples-1)) {
			return fmt.Errorf("%s: the last sample has other bytes than were written", path(shard))
		}
		total += int64(len(got))
	}
	fmt.Printf("read %d shards in order: %d bytes\n", shards, total)
	return nil
}

// readAtRandom reads single samples: the client transfers only their bytes.
func readAtRandom(ctx context.Context, c *client.Client) error {
	got := make([]byte, sampleBytes)
	for range 100 {
		shard, n := rand.IntN(shards), rand.IntN(samples)
		r, err := c.OpenFile(ctx, path(shard))
		if err != nil {
			return err
		}
		err = r.ReadRange(ctx, got, int64(n)*sampleBytes)
		if err := r.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(got, sample(shard, n)) {
			return fmt.Errorf("%s: sample %d has other bytes than were written", path(shard), n)
		}
	}
	fmt.Println("read 100 samples at random")
	return nil
}
