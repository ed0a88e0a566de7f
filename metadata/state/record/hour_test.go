package record_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/morainefs/moraine/metadata/state/record"
)

func TestHourNames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	at := []int64{0, -1, 1, 951_782_400_000_000_000, 951_868_799_999_999_999, 4_107_542_400_000_000_000}
	for range 100_000 {
		at = append(at, rng.Int64()-rng.Int64())
	}
	for _, nanos := range at {
		if have, want := record.HourName(nanos), time.Unix(0, nanos).UTC().Format("2006-01-02T15"); have != want {
			t.Fatalf("%d is %s, want %s", nanos, have, want)
		}
	}
}
