package mover_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
)

// TestPacksContentOutOfTheMetadata: cold files whose content the metadata has are packed into few
// stripes, coded or copies as the policy says. Content, generations and times stay, and nothing of
// them is left in the metadata.
func TestPacksContentOutOfTheMetadata(t *testing.T) {
	for _, scheme := range []moraine.Scheme{{K: 4, M: 2}, moraine.Copies(3)} {
		t.Run(scheme.String(), func(t *testing.T) {
			inCluster(t, packs, func(t *testing.T, c *memcluster.Cluster) {
				s := newSmalls(t, c)
				s.cl.Close()
				s.cl = c.Dial(memcluster.Peer(transport.RoleClient, "writer"), client.Config{Metadata: memcluster.Endpoints()})
				dir, err := s.cl.MkdirAll(t.Context(), "/p", 0o755)
				require.NoError(t, err)
				require.NoError(t, s.cl.Policies().Set(t.Context(), dir.Inode(), client.Policy{Scheme: scheme}))
				s.make("/p", 100)
				require.Empty(t, s.stripes())
				type stamps struct {
					generation moraine.Generation
					mtime      int64
				}
				before := map[string]stamps{}
				for name := range s.data {
					a := s.attr(name)
					require.Equal(t, a.Size(), a.Inline())
					before[name] = stamps{a.Generation(), a.ModTime().UnixNano()}
				}
				startMover(t, c, "n1")
				s.eventually("the content is packed", func() bool {
					for name := range s.data {
						if s.attr(name).Inline() > 0 {
							return false
						}
					}
					return true
				})
				require.LessOrEqual(t, len(s.stripes()), 8)
				for _, st := range s.stripes() {
					require.EqualValues(t, scheme.K, st.Scheme.K)
				}
				for name := range s.data {
					a := s.attr(name)
					require.Equal(t, before[name], stamps{a.Generation(), a.ModTime().UnixNano()}, name)
				}
				s.hold()
			})
		})
	}
}
