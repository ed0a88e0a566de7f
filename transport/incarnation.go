package transport

import "github.com/morainefs/moraine"

// MarkedIncarnation reads an incarnation from a message; number 0 if it has none.
func MarkedIncarnation(number uint64, mark []byte) moraine.MarkedIncarnation {
	m := moraine.MarkedIncarnation{Number: moraine.Incarnation(number)}
	if number > 255 { // no such incarnation
		m.Number = 0
	}
	if len(mark) == len(m.Mark) {
		m.Mark = moraine.UUID(mark)
	}
	return m
}

// MarkBytes is the mark of an incarnation in messages: nil for zero.
func MarkBytes(m moraine.MarkedIncarnation) []byte { return uuidBytes(m.Mark) }
