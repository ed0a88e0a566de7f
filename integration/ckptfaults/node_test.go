package ckptfaults_test

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
)

// arenaBytes is the limit of one node's arenas.
const arenaBytes = 96 << 20

// node is a training node with an agent.
type node struct {
	w       *world
	name    string
	metrics *agent.Metrics // of all agents that the node has had
	end     func()         // of the agent; nil: none runs
}

func (n *node) socket() string { return filepath.Join(n.w.dir, n.name+".sock") }
func (n *node) arena() string  { return filepath.Join(n.w.dir, n.name) }

// start runs an agent. It has no grace: its end is like a crash, but for the memory of the process.
func (n *node) start() error {
	var mu sync.Mutex
	var clients []*incluster.Client
	a, err := agent.New(agent.Config{Socket: n.socket(), Dir: n.arena(), Memory: arenaBytes}, agent.Deps{Metrics: n.metrics,
		Connect: func(ctx context.Context) (*client.Client, func() error, error) {
			c, err := n.w.client(ctx, func(d transport.Dialer) transport.Dialer {
				return incluster.Through(d, n.w.trap.requests(n.name))
			})
			if err != nil {
				return nil, nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			clients = append(clients, c)
			return c.Client, c.Close, nil
		}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Run(ctx) // it reports the parts that it leaves to the next one
	}()
	n.end = func() {
		cancel()
		<-ended
		for _, c := range clients { // their process has ended
			n.w.end(c)
		}
	}
	return nil
}

// kill ends the agent, if one runs.
func (n *node) kill() {
	if n.end != nil {
		n.end()
		n.end = nil
	}
}
