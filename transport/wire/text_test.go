package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

func TestTextCanAlwaysBeEncoded(t *testing.T) {
	for _, s := range []string{"", "plain", "\xff\xfe", "gr\xfc\xdfe", strings.Repeat("é", 40), "x" + strings.Repeat("é", 40), strings.Repeat("日", 40), strings.Repeat("\x80", 40)} {
		for most := range 50 {
			got := wire.Text(s, most)
			require.LessOrEqual(t, len(got), most+len("..."))
			_, err := proto.Marshal(&wire.FinishJob{Error: got})
			require.NoError(t, err, "%q, %d bytes at most", s, most)
		}
	}
	require.Equal(t, "plain", wire.Text("plain", 5))
	require.Equal(t, "pl...", wire.Text("plain", 2))
}
