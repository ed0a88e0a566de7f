package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(inner), nil
}

// pipeline is raft's pipeline with a fix for a deadlock of raft v1.8.0. After a failed answer raft
// stops taking answers. Its sender may then be waiting for room in the pipeline, which only a taken
// answer makes, and nothing else wakes it. The follower then gets no entries until the leadership
// changes. Here the first failure closes the pipeline, which ends that wait. Raft then continues
// without it and opens a new one.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	once    sync.Once
	closed  chan struct{}
}

func newPipeline(inner raft.AppendPipeline) *pipeline {
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go p.forward() // until Close, which raft always calls
	return p
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline; it ends the goroutine of the pipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// forward passes the answers on until the pipeline is closed.
func (p *pipeline) forward() {
	inner := p.AppendPipeline.Consumer()
	for {
		select {
		case answer := <-inner:
			if answer.Error() != nil || !answer.Response().Success {
				p.AppendPipeline.Close() // ends a wait in AppendEntries; always nil
			}
			select {
			case p.answers <- answer:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}
