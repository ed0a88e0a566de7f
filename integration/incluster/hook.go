package incluster

import (
	"context"
	"sync"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Requests is the layer that every request of a client to the metadata service
// passes: it calls m, or does not, and answers.
type Requests func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error)

// Through returns d with its requests to the metadata service passed through do;
// ClientOver accepts it.
func Through(d transport.Dialer, do Requests) transport.Dialer { return through{d, do} }

type through struct {
	transport.Dialer
	do Requests
}

func (d through) Metadata(addrs []string) transport.Metadata {
	return throughMetadata{d.Dialer.Metadata(addrs), d.do}
}

type throughMetadata struct {
	transport.Metadata
	do Requests
}

func (m throughMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return m.do(ctx, m.Metadata, req)
}

// Nap is the sleep of a client's process: the client neither sends to the metadata
// service meanwhile, nor receives from it. The zero value is awake. Methods may be
// called concurrently.
type Nap struct {
	mu    sync.Mutex
	awake chan struct{} // closed when the sleep ends; nil: it is awake
}

// Over is do for a client that sleeps at times.
func (n *Nap) Over(do Requests) Requests {
	return func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		n.Sleep()
		resp, err := do(ctx, m, req)
		n.Sleep()
		return resp, err
	}
}

// Begin puts the client to sleep.
func (n *Nap) Begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.awake == nil {
		n.awake = make(chan struct{})
	}
}

// End wakes it.
func (n *Nap) End() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.awake != nil {
		close(n.awake)
		n.awake = nil
	}
}

// Sleep returns when the client is awake, regardless of its caller's context.
func (n *Nap) Sleep() {
	n.mu.Lock()
	awake := n.awake
	n.mu.Unlock()
	if awake != nil {
		<-awake
	}
}

// Plain only calls m.
func Plain(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return m.Do(ctx, req)
}
