package cli

import (
	"cmp"
	"os"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/spf13/cobra"
)

// agentVariable names the socket of the node's agent, for commands and for the Python package.
const agentVariable = "MORAINE_AGENT"

// AgentDefault is what the help says of a flag that AgentSocket completes.
const AgentDefault = "(default: " + agentVariable + ", or " + agentproto.DefaultSocket + ")"

// AgentSocket returns the socket of the node's agent: what a flag gives, else MORAINE_AGENT, else the usual one.
func AgentSocket(flag string) string {
	return cmp.Or(flag, os.Getenv(agentVariable), agentproto.DefaultSocket)
}

// AgentIfNamed is AgentSocket of a command that also works without an agent: empty unless the flag or MORAINE_AGENT
// names one. An empty flag that is given means none.
func AgentIfNamed(cmd *cobra.Command, name, flag string) string {
	if cmd.Flags().Changed(name) {
		return flag
	}
	return os.Getenv(agentVariable)
}
