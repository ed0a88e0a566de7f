package members

import (
	"context"
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// FinishUpgrade raises the feature level to the newest one that every member supports.
func (g *Group) FinishUpgrade(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := g.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	info, level, err := g.commonLevel()
	if err != nil {
		return nil, err
	}
	if asked := c.Req.GetFinishUpgrade().GetLevel(); asked != 0 {
		if asked > level {
			return nil, &moraine.Error{Op: "finish upgrade", Kind: moraine.Conflict, Err: fmt.Errorf("some metadata servers do not support level %d: %s", asked, g.levels(asked))}
		}
		level = asked
	}
	if level > info.FeatureLevel {
		_, err := g.Command(ctx, &statepb.Command{Op: &statepb.Command_SetFeatureLevel{
			SetFeatureLevel: &statepb.SetFeatureLevel{Level: level}}})
		if err != nil {
			return nil, err
		}
		g.Log.Info("the feature level was raised", "from", info.FeatureLevel, "to", level)
	}
	return g.membersReply()
}

// commonLevel returns the newest level that all members support, with or without a vote, since all
// of them apply the log. It fails if a member has not reported its level.
func (g *Group) commonLevel() (info kvtx.ClusterInfo, level uint64, err error) {
	if _, _, info, err = g.seatOf(g.Node); err != nil {
		return info, 0, err
	}
	level = g.Machine.Level
	var silent []string
	for _, m := range g.Store.Members() {
		if m.ID == g.Node {
			continue
		}
		h, reported := g.news.of(m.ID, g.Clock.Now())
		if !reported {
			silent = append(silent, m.ID)
			continue
		}
		level = min(level, h.status.GetLevel())
	}
	if len(silent) > 0 {
		err = &moraine.Error{Op: "finish upgrade", Kind: moraine.Conflict, Err: fmt.Errorf("the level of %s is unknown: start or remove each of these servers, and repeat the request", strings.Join(silent, ", "))}
	}
	return info, level, err
}

// levels names the members whose builds do not support a level.
func (g *Group) levels(level uint64) string {
	var out []string
	if g.Machine.Level < level {
		out = append(out, fmt.Sprintf("%s speaks %d", g.Node, g.Machine.Level))
	}
	for _, m := range g.Store.Members() {
		if h, ok := g.news.of(m.ID, g.Clock.Now()); ok && m.ID != g.Node && h.status.GetLevel() < level {
			out = append(out, fmt.Sprintf("%s speaks %d", m.ID, h.status.GetLevel()))
		}
	}
	return strings.Join(out, ", ")
}
