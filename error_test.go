package moraine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
)

// KindOf names the outermost kind, and knows the errors of ended contexts.
func TestKindOf(t *testing.T) {
	inner := &moraine.Error{Op: "get", Kind: moraine.Corrupt, Err: moraine.NotFound}
	for name, c := range map[string]struct {
		err  error
		want moraine.Kind
	}{
		"an error":                    {inner, moraine.Corrupt},
		"a kind":                      {moraine.Busy, moraine.Busy},
		"one around another":          {&moraine.Error{Kind: moraine.Lost, Err: inner}, moraine.Lost},
		"wrapped":                     {fmt.Errorf("read: %w", inner), moraine.Corrupt},
		"a deadline":                  {fmt.Errorf("read: %w", context.DeadlineExceeded), moraine.Timeout},
		"a cancellation":              {context.Canceled, moraine.Canceled},
		"a kind with a context's end": {&moraine.Error{Kind: moraine.Unavailable, Err: context.Canceled}, moraine.Unavailable},
		"anything else":               {errors.New("x"), moraine.Internal},
	} {
		if have := moraine.KindOf(c.err); have != c.want {
			t.Errorf("%s: %v, want %v", name, have, c.want)
		}
	}
}
