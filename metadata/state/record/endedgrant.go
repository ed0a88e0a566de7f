package record

import "github.com/morainefs/moraine"

// Fold makes one range of g and what follows right behind it.
func (g *Grant) Fold(other *Grant) {
	g.Count += other.Count
	g.EndedAt, g.EndedSince = max(g.EndedAt, other.EndedAt), max(g.EndedSince, other.EndedSince)
	g.Session, g.Used = 0, nil // of an ended grant they say nothing
}

func EncodeEndedCursor(at moraine.StripeID) []byte {
	return PutFixed64([]byte{endedCursorVersion}, uint64(at))
}

func DecodeEndedCursor(b []byte) (moraine.StripeID, error) {
	d := Dec{B: b}
	d.Version(endedCursorVersion)
	at := moraine.StripeID(d.Fixed64())
	return at, d.End("cursor of ended grants")
}

const endedCursorVersion = 1
