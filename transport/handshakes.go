package transport

import (
	"container/list"
	"net"
)

// handshakes are the connections in their handshake, in order of arrival. The zero
// value is empty.
type handshakes struct {
	order list.List
	at    map[net.Conn]*list.Element
}

func (h *handshakes) add(nc net.Conn) {
	if h.at == nil {
		h.at = make(map[net.Conn]*list.Element)
	}
	h.at[nc] = h.order.PushBack(nc)
}

func (h *handshakes) remove(nc net.Conn) {
	if e := h.at[nc]; e != nil {
		h.order.Remove(e)
		delete(h.at, nc)
	}
}

// oldest removes the connection that came first, or returns nil if there is none.
func (h *handshakes) oldest() net.Conn {
	e := h.order.Front()
	if e == nil {
		return nil
	}
	nc := e.Value.(net.Conn)
	h.remove(nc)
	return nc
}
