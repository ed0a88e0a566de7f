package localfiles_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/mover"
)

// TestAManifestNamesNoFileElsewhere: a manifest that names a file outside of the restore's directory,
// or that is none, is Corrupt. A step without one was not saved from files.
func TestAManifestNamesNoFileElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := memcluster.Start(t, memcluster.Options{Hosts: 3})
		defer stop()
		cl := c.Mover("n1")
		m, err := mover.New(mover.Config{}, mover.Deps{Client: cl})
		require.NoError(t, err)
		c.Run(func(ctx context.Context) error {
			defer cl.Close()
			return m.Run(ctx)
		})
		trainer := c.Client("trainer")
		defer trainer.Close()
		run, err := ckpt.OpenRun(t.Context(), trainer, "/r", ckpt.RunOptions{Launch: ckpt.Launch{Name: "a"}, StagingBytes: 64 << 20})
		require.NoError(t, err)
		defer run.Close(context.Background())
		const entry = `{"format":"moraine files 1","files":[{"name":%q,"crc32c":"00000000","blob":"x"}]}`
		for step, blob := range []string{"", "no JSON", `{"format":"moraine files 2"}`, fmt.Sprintf(entry, "../x"), fmt.Sprintf(entry, "/etc/x"),
			fmt.Sprintf(entry, ".."), fmt.Sprintf(entry, ""), fmt.Sprintf(entry, "x")} {
			part, err := run.Begin(t.Context(), uint64(step), ckpt.BeginOptions{})
			require.NoError(t, err)
			if blob != "" {
				require.NoError(t, part.AddBlob(t.Context(), localfiles.Manifest, []byte(blob)))
			}
			require.NoError(t, part.Seal(t.Context()))
			_, err = part.Wait(t.Context(), moraine.NVMe)
			require.NoError(t, err)
			k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{})
			require.NoError(t, err)
			saved, err := localfiles.Saved(t.Context(), k)
			switch step {
			case 0:
				require.NoError(t, err)
				require.Empty(t, saved)
			case 7:
				require.NoError(t, err)
				require.Len(t, saved, 1)
			default:
				require.ErrorIs(t, err, moraine.Corrupt, blob)
			}
			require.NoError(t, k.Close())
		}
	})
}
