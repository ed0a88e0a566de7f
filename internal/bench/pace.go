package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine/client"
	"golang.org/x/sync/errgroup"
)

// pace does one kind of small work at a steady rate. Each of its clients does one
// piece after the other, at its turns. A client that is late by paceBehind skips
// turns, so the actual rate may be lower than the offered one. A latency is from
// the turn to the answer, and a skipped turn counts with the time it had waited by
// then. Otherwise a stall of all clients would count as one slow piece each, and
// not as the work that it delayed ("coordinated omission").
type pace struct {
	rate    float64
	asking  *client.Client // for observers
	makers  []*maker
	ends    []func() error
	stop    context.CancelFunc
	working *errgroup.Group
	began   time.Time
}

const paceBehind = 100 * time.Millisecond

// maker is one client.
type maker struct {
	do    func(ctx context.Context, n int) error // does its n-th piece
	every time.Duration

	mu     sync.Mutex
	took   []time.Duration // in the phase
	passed []time.Duration // waiting times of skipped turns
}

// lap is the work done in a phase.
type lap struct {
	wall      time.Duration
	done      int
	latencies []time.Duration // in order; of finished pieces and of skipped turns
}

// at returns the latency, in milliseconds, that the given part of them does not
// exceed; there is at least one.
func (l *lap) at(part float64) float64 {
	return l.latencies[int(part*float64(len(l.latencies)-1))].Seconds() * 1000
}

// startCreates starts making empty files below dir, with so many clients; end ends
// it.
func startCreates(ctx context.Context, e *Env, dir string, clients int, rate float64) (*pace, error) {
	if err := e.mkdir(ctx, dir); err != nil {
		return nil, err
	}
	return startPace(ctx, e, clients, rate, func(c *client.Client, i int) (func(context.Context, int) error, error) {
		attr, err := c.Mkdir(ctx, fmt.Sprintf("%s/client-%d", dir, i), 0o755)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, n int) error {
			_, err := c.Inodes().CreateEmpty(ctx, attr.Inode(), fmt.Sprintf("file-%09d", n), 0o644)
			return err
		}, nil
	})
}

// startPace starts the work of so many clients; prepare returns the work of the i-th, on
// its session. end ends it.
func startPace(ctx context.Context, e *Env, clients int, rate float64, prepare func(c *client.Client, i int) (do func(ctx context.Context, n int) error, err error)) (p *pace, err error) {
	p = &pace{rate: rate, began: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	connect := func() (*client.Client, error) {
		c, end, err := e.Connect(ctx)
		if err == nil {
			p.ends = append(p.ends, end)
		}
		return c, err
	}
	if p.asking, err = connect(); err != nil {
		return p, err
	}
	for i := range clients {
		c, err := connect()
		if err != nil {
			return p, err
		}
		do, err := prepare(c, i)
		if err != nil {
			return p, err
		}
		p.makers = append(p.makers, &maker{do: do, every: time.Duration(float64(clients) / rate * float64(time.Second))})
	}
	working, stop := context.WithCancel(ctx)
	p.stop = stop
	p.working, working = errgroup.WithContext(working)
	for i, m := range p.makers {
		p.working.Go(func() error { return m.work(working, m.every*time.Duration(i)/time.Duration(clients)) })
	}
	return p, nil
}

// work does its pieces until ctx ends, the first after wait.
func (m *maker) work(ctx context.Context, wait time.Duration) error {
	turn := time.Now().Add(wait)
	for n := 0; ; n++ {
		if err := sleep(ctx, time.Until(turn)); err != nil {
			return nil
		}
		if err := m.do(ctx, n); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		m.mu.Lock()
		m.took = append(m.took, time.Since(turn))
		turn = turn.Add(m.every)
		if now := time.Now(); now.Sub(turn) > paceBehind {
			for ; turn.Before(now); turn = turn.Add(m.every) {
				m.passed = append(m.passed, now.Sub(turn))
			}
		}
		m.mu.Unlock()
	}
}

// begin starts a phase.
func (p *pace) begin() { p.lap() }

// lap ends a phase, and starts the next.
func (p *pace) lap() lap {
	l := lap{wall: time.Since(p.began)}
	p.began = time.Now()
	for _, m := range p.makers {
		m.mu.Lock()
		l.done += len(m.took)
		l.latencies = append(append(l.latencies, m.took...), m.passed...)
		m.took, m.passed = m.took[:0], m.passed[:0]
		m.mu.Unlock()
	}
	slices.Sort(l.latencies)
	return l
}

// end ends the work and the sessions; it returns a client's error.
func (p *pace) end() error {
	p.stop()
	return errors.Join(p.working.Wait(), p.close())
}

func (p *pace) close() error {
	var errs []error
	for _, end := range p.ends {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}
