package incluster

import (
	"context"
	"sync"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Requests is what every request of a client to the metadata service goes through:
// it asks m, or does not, and answers.
type Requests func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error)

// Through returns d with its requests to the metadata service going through do: what
// ClientOver may be given.
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

// Nap is the sleep of a client's process: while it lasts the client neither sends
// to the metadata service, nor takes what was sent to it. The zero value is awake.
// Methods may be called concurrently.
type Nap struct {
	mu    sync.Mutex
	awake chan struct{} // closed when the sleep ends; nil: it is awake
}

// Over is do by a client that sleeps, sometimes.
func (n *Nap) Over(do Requests) Requests {
	return func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		n.Sleep()
		resp, err := do(ctx, m, req)
		n.Sleep()
		return resp, err
	}
}

// Begin has the client sleep.
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

// Sleep returns when the client is awake, whatever its caller had in mind.
func (n *Nap) Sleep() {
	n.mu.Lock()
	awake := n.awake
	n.mu.Unlock()
	if awake != nil {
		<-awake
	}
}

// Plain asks, and nothing else.
func Plain(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return m.Do(ctx, req)
}
