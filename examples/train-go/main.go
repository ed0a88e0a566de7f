// Command train-go is a training loop with several ranks that saves a checkpoint every few steps
// and does not mind to be killed: the next start goes on from the newest checkpoint, and its losses
// are those of a run that nobody disturbed. In a real job each rank is a process on its own node;
// here each is a goroutine with its own client.
//
// One path through it: main starts the ranks -> each rank opens the run and restores its share
// (rank.go) -> it trains, and saves as it trains -> rank 0 writes the losses (curve.go). The
// arithmetic is in model.go.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"golang.org/x/sync/errgroup"
)

// settings are the flags.
type settings struct {
	run    string
	steps  uint64
	every  uint64
	world  uint
	curve  string
	pause  time.Duration
	launch ckpt.Launch
	agent  string
}

func main() {
	var s settings
	flag.StringVar(&s.run, "run", "/examples/train-go", "directory of the run in the cluster")
	flag.Uint64Var(&s.steps, "steps", 200, "steps to train, those of earlier starts included")
	flag.Uint64Var(&s.every, "every", 10, "save a checkpoint each time so many steps are done")
	flag.UintVar(&s.world, "world", 4, "number of ranks; each start may choose another")
	flag.StringVar(&s.curve, "curve", "", "file to which each step appends its number and its loss (default: none)")
	flag.DurationVar(&s.pause, "pause", 0, "sleep so long in each step")
	flag.Parse()
	s.agent = os.Getenv("MORAINE_AGENT")
	if s.launch = ckpt.LaunchFromEnv(os.Getenv); s.launch.Name == "" {
		s.launch.Name = fmt.Sprintf("train-go-%d-%d", os.Getpid(), time.Now().UnixNano())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := train(ctx, s); err != nil {
		log.Fatal(err)
	}
}

// train runs all ranks to the last step.
func train(ctx context.Context, s settings) error {
	if s.world == 0 || s.world > blocks || s.every == 0 {
		return fmt.Errorf("-world must be 1 to %d, and -every at least 1", blocks)
	}
	losses, err := openCurve(s.curve)
	if err != nil {
		return err
	}
	team := newTeam(int(s.world))
	ranks, ctx := errgroup.WithContext(ctx)
	for n := range uint32(s.world) {
		ranks.Go(func() error {
			r := rank{settings: s, rank: n, world: uint32(s.world), team: team, losses: losses}
			if err := r.main(ctx); err != nil {
				return fmt.Errorf("rank %d: %w", n, err)
			}
			return nil
		})
	}
	return cmp.Or(ranks.Wait(), losses.close())
}

// connect opens a client as the environment says. Each rank needs its own: the session of a client
// stands for one rank.
func connect(ctx context.Context) (*client.Client, error) {
	return client.Open(ctx, "moraine:///", client.OptionsFromEnv(os.Getenv))
}
