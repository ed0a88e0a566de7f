package agentproto

import (
	"errors"

	"github.com/morainefs/moraine"
)

// ErrorOf describes an error for a reply.
func ErrorOf(err error) *Error {
	return &Error{Kind: moraine.KindOf(err).String(), Text: err.Error()}
}

// Err returns the error of a reply: nil, or a *moraine.Error of the agent's kind.
func (r *Reply) Err() error {
	if r.Error == nil {
		return nil
	}
	return &moraine.Error{Op: "agent", Kind: kindNamed(r.Error.Kind), Err: errors.New(r.Error.Text)}
}

// kindNamed is the inverse of Kind.String; Internal for a name that this build does not know.
func kindNamed(name string) moraine.Kind {
	for k := moraine.Kind(0); k < 64; k++ {
		if k.String() == name {
			return k
		}
	}
	return moraine.Internal
}
