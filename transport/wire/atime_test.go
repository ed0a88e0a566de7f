package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/wire"
)

// TestAtimeIsOld: the rule of relatime.
func TestAtimeIsOld(t *testing.T) {
	const now, second, day = int64(1_700_000_000_000_000_000), int64(time.Second), int64(24 * time.Hour)
	for name, c := range map[string]struct {
		atime, mtime, ctime, read int64
		want                      bool
	}{
		"not read since the change of the content":    {now - 9*second, now - 3*second, now - 20*second, now, true},
		"not read since the change of the attributes": {now - 9*second, now - 20*second, now - 3*second, now, true},
		"read when it was made":                       {now - 9*second, now - 9*second, now - 9*second, now, true},
		"read since":                                  {now - 9*second, now - 10*second, now - 10*second, now, false},
		"read a day ago":                              {now - day, now - 2*day, now - 2*day, now, true},
		"read less than a day ago":                    {now - day + 1, now - 2*day, now - 2*day, now, false},
		"a later read is known":                       {now + 1, now + 2, now + 2, now, false},
		"this read is known":                          {now, now, now, now, false},
		"changed in the future":                       {now - 1, now + day, now - day, now, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, wire.AtimeIsOld(c.atime, c.mtime, c.ctime, c.read))
		})
	}
}
