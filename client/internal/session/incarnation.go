package session

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// follows records the incarnation of the metadata of a server that opened or renewed a session.
// It fails if that is older than the newest that this client has seen. Then a restore or a
// forced quorum has replaced the server, and the client must use another one. r is nil in
// answers that do not name it.
func (m *Conn) follows(r *wire.SessionReply) error {
	said := transport.MarkedIncarnation(r.GetIncarnation(), r.GetMark())
	for {
		known := m.incarnation.Load()
		switch {
		case said.Number == 0 || (known != nil && *known == said):
			return nil
		case known != nil && !said.Outlives(*known):
			return &moraine.Error{Op: "session", Kind: moraine.Unavailable,
				Err: fmt.Errorf("the server has incarnation %v of the metadata, but this client follows %v: stop that server", said, *known)}
		case m.incarnation.CompareAndSwap(known, &said):
			return nil
		}
	}
}
